"""PLaMo 3 against its formula."""

import json
from pathlib import Path
from typing import Any

import pytest
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
        ({"window_size": None}, "window_size"),
    ],
)
def test_what_changes_the_shape_is_named(
    values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAMO3 | values))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)
