"""Norms of heads: each rank asks for its own heads' weights, and norms its own channels."""

import pytest
import torch
from tests.plugins.models.conftest import CPU

from hotshoe.layers import BuildContext
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.head_norms import before_heads
from hotshoe_models.spec import DecoderSpec, WeightNames

HEADS, DIM, EPS = 4, 8, 1e-3
SHAPE = {"vocab_size": 9, "hidden_size": 32, "layers": (), "norm_eps": EPS, "tied": False}


def layer_norm(x):
    wide = x.unflatten(1, (-1, DIM))
    centered = wide - wide.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + EPS).sqrt()


@pytest.mark.parametrize("kind", ["shared", "listed", "stacked"])
def test_every_rank_norms_its_own_heads(kind) -> None:
    q_name = "q.{}" if kind == "listed" else "q"
    names = WeightNames(
        qk_norm=(q_name, q_name.replace("q", "k")),
        layer_qk_norm="shared" if kind == "shared" else "own",
    )
    sizes = {"num_heads": HEADS, "num_kv_heads": 2, "head_dim": DIM}
    spec = DecoderSpec(**SHAPE, names=names, **sizes)
    qkv = torch.randn(5, (HEADS + 2 * 2) * DIM)
    weights = {"q": torch.randn(HEADS, DIM), "k": torch.randn(2, DIM)}
    biases = {part: torch.randn(DIM) for part in "qk"}
    for rank in range(2):
        plain = Selector(SLOTS, [], CPU)
        ctx = BuildContext(plain, "float32", "float32", 4, 16, rank=rank, size=2)
        norms = before_heads(spec, ctx, "a.")
        for name, wanted in ctx.weights.expected.items():
            part, *head = name.removeprefix("a.").split(".")[:-1]
            full = biases[part] if name.endswith("bias") else weights[part]
            if head:
                full = full[int(head[0])]
            elif kind == "shared" and name.endswith("weight"):
                full = full[0]
            assert wanted.shape == full.shape
            for sink in wanted.sinks:
                sink(full)
        own = torch.cat([qkv[:, 16 * rank :][:, :16], qkv[:, 32 + 8 * rank :][:, :8]], 1)
        expected = []
        for part, x, heads in (("q", own[:, :16], 2), ("k", own[:, 16:], 1)):
            w = weights[part][:1] if kind == "shared" else weights[part][heads * rank :][:heads]
            b = biases[part] if kind == "shared" else 0.0
            expected.append((layer_norm(x) * w + b).flatten(1))
        found = torch.cat([own, qkv[:, -8:]], 1)
        norms(found)
        torch.testing.assert_close(found[:, :24], torch.cat(expected, 1), rtol=1e-4, atol=1e-4)
        assert torch.equal(found[:, 24:], qkv[:, -8:])


def test_without_such_norms_nothing_is_asked_for() -> None:
    ctx = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 16)
    spec = DecoderSpec(**SHAPE, num_heads=1, num_kv_heads=1, head_dim=8)
    assert before_heads(spec, ctx, "a.") is None and not ctx.weights.expected
