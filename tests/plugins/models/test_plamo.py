"""PLaMo 2 and 3 against their formulas."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.plugins.models.conftest import LENGTH, VOCAB
from tests.plugins.models.plain import (
    CONFIG,
    DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    SIZE,
    WIDTH,
    Drawn,
    attended,
    check,
    rotated,
)
from torch import Tensor
from torch.nn import functional

from hotshoe.errors import CheckpointError

WINDOW = 7
#: Tokens, and rows of an output matrix, of which the published code makes a multiple of 16.
ODD, ROWS = VOCAB + 5, VOCAB + 16
PLAMO3 = CONFIG | {
    "architectures": ["Plamo3ForCausalLM"],
    "head_dim": DIM,
    "window_size": WINDOW,
    "sliding_window_pattern": LAYERS,
    "rope_theta": 1000.0,
    "rope_local_theta": 100.0,
    "tie_word_embeddings": True,
}


def mlp(w: Drawn, x: Tensor, prefix: str) -> Tensor:
    gate, up = w.linear(x, f"{prefix}gate_up_proj", 2 * WIDTH).chunk(2, -1)
    return w.linear(functional.silu(gate) * up, f"{prefix}down_proj", SIZE)


def heads(w: Drawn, x: Tensor, prefix: str) -> list[Tensor]:
    counts = (HEADS, KV_HEADS, KV_HEADS)
    parts = w.linear(x, f"{prefix}qkv_proj", sum(counts) * DIM).split([n * DIM for n in counts], -1)
    return [part.view(len(x), count, DIM) for part, count in zip(parts, counts, strict=True)]


def hidden_states(w: Drawn, ids: Tensor, words: int = VOCAB) -> Tensor:
    def norm(x: Tensor, name: str, offset: float = 1.0) -> Tensor:
        return w.norm(x, name, around=0.0, offset=offset)

    x = w.of("model.embed_tokens.weight", words, SIZE)[ids]
    for i in range(LAYERS):
        prefix, full = f"model.layers.layers.{i}.", i + 1 == LAYERS
        q, k, v = heads(w, norm(x, f"{prefix}pre_mixer_norm"), f"{prefix}mixer.")
        theta = 1000.0 if full else 100.0
        q = rotated(norm(q, f"{prefix}mixer.q_norm"), theta)
        k = rotated(norm(k, f"{prefix}mixer.k_norm"), theta)
        out = attended(q, k, v, window=None if full else WINDOW)
        out = w.linear(out, f"{prefix}mixer.o_proj", SIZE)
        x = x + norm(out, f"{prefix}post_mixer_norm", 0.2)
        out = mlp(w, norm(x, f"{prefix}pre_mlp_norm"), f"{prefix}mlp.")
        x = x + norm(out, f"{prefix}post_mlp_norm", 5**-1.5)
    return norm(x, "model.norm")


def tied(w: Drawn, ids: Tensor) -> Tensor:
    return hidden_states(w, ids) @ w["model.embed_tokens.weight"].T


def untied(w: Drawn, ids: Tensor) -> Tensor:
    return w.linear(hidden_states(w, ids, ODD), "lm_head", ROWS)[:, :ODD]


LEGACY = {"sliding_window": [WINDOW, WINDOW, None], "rope_global_theta": 1000.0}


@pytest.mark.parametrize("first", [False, True])
def test_logits_are_those_of_the_formula(first: bool, stepper_class, tmp_path: Path) -> None:
    """The first files have other keys."""
    if not first:
        check(tmp_path, PLAMO3, tied, stepper_class)
        return
    config = {key: PLAMO3[key] for key in PLAMO3.keys() - {"window_size", "rope_theta"}} | LEGACY
    config |= {"tie_word_embeddings": False, "vocab_size": ODD}
    check(tmp_path, config, untied, stepper_class)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale_embedding": True}, "scale_embedding"),
        ({"window_size": None, "sliding_window": [3, 4]}, "one window for all layers"),
        ({"window_size": None, "sliding_window": [[3]]}, "sliding_window"),
        ({"window_size": None}, "window_size"),
    ],
)
def test_what_changes_the_shape_is_named(
    values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAMO3 | values))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)


STATE, BLOCK_HEADS, LAGS = 4, 8, 4
PLAMO2 = CONFIG | {
    "architectures": ["Plamo2ForCausalLM"],
    "hidden_size_per_head": DIM,
    "attention_window_size": LENGTH,
    "mamba_d_state": STATE,
    "mamba_num_heads": BLOCK_HEADS,
    "mamba_step": 2,
    "tie_word_embeddings": True,
}


def block(w: Drawn, x: Tensor, prefix: str) -> Tensor:
    inner, rank = BLOCK_HEADS * DIM, 64
    both = w.linear(x, f"{prefix}in_proj", 2 * inner).view(len(x), BLOCK_HEADS, 2 * DIM)
    gate, x = (part.flatten(1) for part in both.split(DIM, -1))
    kernel = w.of(f"{prefix}conv1d.weight", inner, 1, LAGS)[:, 0]
    x = functional.silu(
        (functional.pad(x.T, (LAGS - 1, 0)).unfold(1, LAGS, 1) * kernel[:, None]).sum(-1).T
    )
    made = w.linear(x, f"{prefix}bcdt_proj", 2 * STATE + rank).split((STATE, STATE, rank), -1)
    b, c, step = (
        w.norm(part, f"{prefix}{name}_norm", weight=f"{prefix}{name}_norm_weight")
        for name, part in zip(("B", "C", "dt"), made, strict=True)
    )
    step = w.linear(step, f"{prefix}dt_proj", BLOCK_HEADS) + w.of(f"{prefix}dt_bias", BLOCK_HEADS)
    step = functional.softplus(step)
    decay = torch.exp(-step * w.of(f"{prefix}A_log", BLOCK_HEADS).exp())
    heads_x = x.view(len(x), BLOCK_HEADS, DIM)
    state, out = torch.zeros(BLOCK_HEADS, DIM, STATE), []
    for t in range(len(x)):
        new = (step[t, :, None] * heads_x[t])[..., None] * b[t]
        state = state * decay[t, :, None, None] + new
        out.append(state @ c[t] + w.of(f"{prefix}D", BLOCK_HEADS)[:, None] * heads_x[t])
    return w.linear(torch.stack(out).flatten(1) * functional.silu(gate), f"{prefix}out_proj", SIZE)


def plamo2(w: Drawn, ids: Tensor) -> Tensor:
    def norm(x: Tensor, name: str, offset: float = 1.0) -> Tensor:
        return w.norm(x, name, around=0.0, offset=offset)

    table = w.of("model.embed_tokens.weight", VOCAB, SIZE)
    x = table[ids]
    for i in range(LAYERS):
        prefix, taken = (
            f"model.layers.layers.{i}.",
            norm(x, f"model.layers.layers.{i}.pre_mixer_norm"),
        )
        if i % 2:
            q, k, v = heads(w, taken, f"{prefix}mixer.")
            q, k = (
                rotated(
                    functional.rms_norm(part, (DIM,), eps=1e-6)
                    * w.of(f"{prefix}mixer.{name}_weight", part.shape[1], DIM)
                )
                for name, part in (("q", q), ("k", k))
            )
            out = w.linear(attended(q, k, v), f"{prefix}mixer.o_proj", SIZE)
        else:
            out = block(w, taken, f"{prefix}mixer.")
        x = x + norm(out, f"{prefix}post_mixer_norm", 0.2)
        out = mlp(w, norm(x, f"{prefix}pre_mlp_norm"), f"{prefix}mlp.")
        x = x + norm(out, f"{prefix}post_mlp_norm", 5**-1.5)
    return norm(x, "model.norm") @ table.T


def test_state_space_blocks_are_those_of_the_formula(stepper_class, tmp_path: Path) -> None:
    check(tmp_path, PLAMO2, plamo2, stepper_class)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_window_size": 16}, "up to it; lower --max-model-len"),
        ({"mamba_step": 1}, "mamba_step"),
        ({"rms_norm_eps": 1e-5}, "as its heads are normed"),
        ({"full_attention_idx": 3}, "full_attention_idx"),
        ({"full_attention_idx": [[3]]}, "full_attention_idx"),
    ],
)
def test_what_changes_the_blocks_is_named(
    values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAMO2 | values))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)
