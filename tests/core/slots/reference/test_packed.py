"""Packed attention of the reference against PyTorch's own, request by request."""

import pytest
import torch
from torch.nn import functional

from hotshoe.slots import PackedAttentionSpec, StepShape
from hotshoe.slots.reference import accepts
from hotshoe.slots.reference.packed import PackedAttention

SPEC = PackedAttentionSpec(4, 2, 8, "float32", 0.3)
LENGTHS = (5, 1, 9)


def shape_of(lengths: tuple[int, ...]) -> StepShape:
    counts = torch.tensor(lengths, dtype=torch.int32)
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()))
    return StepShape(len(lengths), starts, counts, max(lengths), max(lengths))


@pytest.mark.parametrize("window", [None, 0, 2])
def test_every_request_attends_to_itself_alone_in_both_directions(window: int | None) -> None:
    spec = PackedAttentionSpec(4, 2, 8, "float32", 0.3, window=window)
    op, qkv = PackedAttention(spec, None), torch.randn(sum(LENGTHS), spec.width)
    positions = torch.cat([torch.arange(n, dtype=torch.int32) for n in LENGTHS])
    found = op(qkv, positions, None, op.prepare(shape_of(LENGTHS)))
    for rows, out in zip(qkv.split(LENGTHS), found.split(LENGTHS), strict=True):
        q, k, v = rows.view(len(rows), -1, 8).transpose(0, 1).split([4, 2, 2])
        at = torch.arange(len(rows))
        seen = (at[:, None] - at).abs() <= (len(rows) if window is None else window)
        wanted = functional.scaled_dot_product_attention(
            q[None], k[None], v[None], seen, scale=0.3, enable_gqa=True
        )
        torch.testing.assert_close(out, wanted[0].transpose(0, 1).flatten(1))


def test_a_rotation_turns_queries_and_keys() -> None:
    spec = PackedAttentionSpec(2, 2, 8, "float32", 0.3, rotary_dim=4)
    op, qkv = PackedAttention(spec, None), torch.randn(3, spec.width)
    positions = torch.arange(3, dtype=torch.int32)
    plan = op.prepare(shape_of((3,)))
    turned = op(qkv, positions, torch.tensor([[0.0] * 2 + [1.0] * 2]).expand(3, 4), plan)
    plain = PackedAttention(PackedAttentionSpec(2, 2, 8, "float32", 0.3), None)
    # All tokens are turned alike, which no product sees.
    torch.testing.assert_close(turned, plain(qkv, positions, None, plan))


def test_a_bias_by_distance_and_tokens_that_are_not_seen() -> None:
    spec = PackedAttentionSpec(2, 2, 8, "float32", 0.3, bias_span=2, limited=True)
    op, qkv, bias = PackedAttention(spec, None), torch.randn(6, spec.width), torch.randn(2, 5)
    plan = op.prepare(shape_of((6,)), torch.tensor([4], dtype=torch.int32))
    found = op(qkv, torch.arange(6, dtype=torch.int32), None, plan, bias)
    q, k, v = qkv.view(6, 3, 2, 8).permute(1, 2, 0, 3)
    added = torch.stack(
        [bias[:, [max(-2, min(2, key - query)) + 2 for key in range(4)]] for query in range(6)], 1
    )
    wanted = functional.scaled_dot_product_attention(
        q[None], k[None, :, :4], v[None, :, :4], added[None], scale=0.3
    )
    torch.testing.assert_close(found, wanted[0].transpose(0, 1).flatten(1))


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"num_kv_heads": 3}, "not 4 for 3"),
        ({"rotary_dim": 3}, "rotates an even number of 8 channels, not 3"),
        ({"rotary_dim": 10}, "rotates an even number of 8 channels, not 10"),
        ({"window": -1}, "at least 0 tokens on each side, not -1"),
        ({"bias_span": -1}, "not of up to -1"),
        ({"dtype": "int8"}, "not in dtype int8"),
    ],
)
def test_refusals(sizes: dict[str, object], reason: str) -> None:
    values = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "dtype": "float32", "scale": 0.3}
    assert reason in accepts.supports(PackedAttentionSpec(**values | sizes), None).reason
