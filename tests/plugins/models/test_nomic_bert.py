"""Nomic's files, as published, and its second version against its formula."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.plugins.models.plain import Drawn, rotated
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close, states
from tests.plugins.models.test_encoder import ATOL, made
from torch import Tensor
from torch.nn import functional

from hotshoe import LLM, PoolingParams, TokensPrompt
from hotshoe.errors import CheckpointError


def test_nomic_publishes_other_keys(tmp_path) -> None:
    model = made(tmp_path, "NomicBert")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["NomicBertModel"],
                "activation_function": "swiglu",
                "n_embd": 64,
                "n_layer": 2,
                "n_head": 4,
                "n_inner": 96,
                "n_positions": 64,
                "layer_norm_epsilon": 1e-12,
                "rotary_emb_base": 50,
                "type_vocab_size": 2,
                "vocab_size": config["vocab_size"],
            }
        )
    )
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        [output] = llm.embed(TokensPrompt(PROMPTS[1]), PoolingParams(normalize=False))
    close(output.embedding, states(model, PROMPTS[1]).mean(0), ATOL)


WORDS, SIZE, LAYERS, HEADS, WIDTH, EXPERTS, TOP_K, EPS, THETA = 128, 64, 4, 4, 96, 5, 2, 1e-5, 50.0
SPARSE: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "vocab_size": WORDS,
    "activation_function": "gelu",
    "n_embd": SIZE,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_inner": WIDTH,
    "n_positions": 64,
    "layer_norm_epsilon": EPS,
    "rotary_emb_base": THETA,
    "type_vocab_size": 1,
    "moe_every_n_layers": 2,
    "moe_top_k": TOP_K,
    "moe_normalize_expert_weights": False,
    "num_experts": EXPERTS,
    "qkv_proj_bias": True,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
}


def linear(w: Drawn, x: Tensor, name: str, rows: int) -> Tensor:
    return w.linear(x, name, rows) + w.of(f"{name}.bias", rows, around=0.0)


def norm(w: Drawn, x: Tensor, name: str) -> Tensor:
    weight, bias = w.of(f"{name}.weight", SIZE), w.of(f"{name}.bias", SIZE, around=0.0)
    return functional.layer_norm(x, (SIZE,), weight, bias, EPS)


def experts(w: Drawn, x: Tensor, prefix: str, bias: bool) -> Tensor:
    """Add up the best experts by their share of all, and a bias."""
    scores, chosen = w.linear(x, f"{prefix}router.layer", EXPERTS).softmax(-1).topk(TOP_K, -1)
    weights = torch.zeros(len(x), EXPERTS).scatter(1, chosen, scores)
    stack = f"{prefix}experts.mlp."
    up = w.of(f"{stack}w1", EXPERTS * WIDTH, SIZE).view(EXPERTS, WIDTH, SIZE)
    down = w.of(f"{stack}w2", EXPERTS * WIDTH, SIZE).view(EXPERTS, WIDTH, SIZE)
    inner = functional.gelu(torch.einsum("ns,ews->enw", x, up))
    out = torch.einsum("enw,ews,ne->ns", inner, down, weights)
    return out + w.of(f"{prefix}experts.bias", SIZE, around=0.0) if bias else out


def nomic(w: Drawn, ids: Tensor, bias: bool = True) -> Tensor:
    """Return the states of a text [n, size]."""
    words = w.of("embeddings.word_embeddings.weight", WORDS, SIZE)[ids]
    x = norm(w, words + w.of("embeddings.token_type_embeddings.weight", 1, SIZE), "emb_ln")
    for i in range(LAYERS):
        prefix = f"encoder.layers.{i}."
        qkv = linear(w, x, f"{prefix}attn.Wqkv", 3 * SIZE).view(len(x), 3, HEADS, -1)
        q, k, v = rotated(qkv[:, 0], THETA), rotated(qkv[:, 1], THETA), qkv[:, 2]
        weights = (torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5).softmax(-1)
        out = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        x = norm(w, x + linear(w, out, f"{prefix}attn.out_proj", SIZE), f"{prefix}norm1")
        if i % 2:
            out = experts(w, x, f"{prefix}mlp.", bias)
        else:
            inner = functional.gelu(linear(w, x, f"{prefix}mlp.fc1", WIDTH))
            out = linear(w, inner, f"{prefix}mlp.fc2", SIZE)
        x = norm(w, x + out, f"{prefix}norm2")
    return x


def test_experts_of_the_second_version(tmp_path: Path) -> None:
    drawn = Drawn()
    nomic(drawn, torch.arange(5))
    save_file(drawn, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(SPARSE))
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        found = llm.embed([TokensPrompt(p) for p in PROMPTS[:4]], PoolingParams(normalize=False))
    for prompt, output in zip(PROMPTS, found, strict=False):
        close(output.embedding, nomic(drawn, torch.tensor(prompt)).mean(0), ATOL)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"activation_function": "swiglu"}, "is served with gelu"),
        ({"mlp_fc1_bias": False}, "is served with it"),
        ({"moe_top_k": 9}, "moe_top_k is 9"),
        ({"moe_every_n_layers": -1}, "moe_every_n_layers"),
    ],
)
def test_other_experts_are_refused(values: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SPARSE | values))
    with pytest.raises(CheckpointError, match=said):
        LLM(str(tmp_path), load_format="dummy", **OPTIONS)
