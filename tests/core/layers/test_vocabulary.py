"""The embedding keeps the checkpoint's own tensor where it can; logits alone, and gathered from
ranks whose parts are padded to be equal.
"""

from dataclasses import replace

import pytest
import torch

from hotshoe.layers import BuildContext, Embedding, Logits, Storage, TensorSpec, WeightFormat
from hotshoe.slots import LinearSpec, QuantSpec


def test_rows_times_scale(ctx):
    layer = Embedding(ctx, "e", 10, 4, scale=2.0)
    table = torch.randn(10, 4)
    ctx.weights.feed("e.weight", table)
    ids = torch.tensor([3, 9, 3], dtype=torch.int32)
    assert torch.equal(layer(ids), table[[3, 9, 3]] * 2)


def test_the_table_is_not_copied_where_its_type_is_right(ctx):
    layer = Embedding(ctx, "e", 10, 4)
    table = torch.randn(10, 4)
    ctx.weights.feed("e.weight", table)
    table[5] = 7.0
    assert torch.equal(layer(torch.tensor([5], dtype=torch.int32)), torch.full((1, 4), 7.0))


def test_the_table_is_converted_where_it_is_not(ctx):
    layer = Embedding(ctx, "e", 10, 4)
    ctx.weights.feed("e.weight", torch.randn(10, 4).bfloat16())
    assert layer(torch.tensor([5], dtype=torch.int32)).dtype == torch.float32


class Gathering:
    """A communicator of ranks that are computed one after the other."""

    def __init__(self, parts: list[torch.Tensor], size: int) -> None:
        self._parts, self._size = parts, size

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is known so far; ranks that come later are NaN."""
        self._parts.append(x)
        unknown = [torch.full_like(x, float("nan"))] * (self._size - len(self._parts))
        return torch.cat([*self._parts, *unknown])


def build(ctx: BuildContext, weight: torch.Tensor, **parallel: object) -> Logits:
    own = BuildContext(ctx.selector, "float32", "float32", 4, 32, **parallel)
    head = Logits(own, "head", *weight.shape)
    own.weights.feed("head.weight", weight)
    return head


def test_alone(ctx) -> None:
    weight, hidden = torch.randn(7, 5), torch.randn(3, 5)
    torch.testing.assert_close(build(ctx, weight)(hidden), hidden @ weight.T)
    assert LinearSpec(5, 7, "float32", out_dtype="float32") in [
        s for _, s in ctx.selector.decisions
    ]


@pytest.mark.parametrize("vocab_size", [1, 5, 7, 8, 9])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_rank_computes_an_equal_part(ctx, vocab_size: int, size: int, rows: int) -> None:
    weight, hidden = torch.randn(vocab_size, 5), torch.randn(rows, 5)
    parts: list[torch.Tensor] = []
    for rank in range(size):
        group = Gathering(parts, size)
        logits = build(ctx, weight, rank=rank, size=size, communicator=group)(hidden)
    assert {part.shape for part in parts} == {(rows, -(-vocab_size // size))}
    torch.testing.assert_close(logits, hidden @ weight.T)  # by the last rank all are there
    assert logits.is_contiguous()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_bias_is_divided_as_the_matrix_is(ctx, size: int) -> None:
    weight, bias, hidden = torch.randn(7, 5), torch.randn(7), torch.randn(3, 5)
    parts: list[torch.Tensor] = []
    for rank in range(size):
        group = Gathering(parts, size) if size > 1 else None
        own = BuildContext(
            ctx.selector, "float32", "float32", 4, 32, rank=rank, size=size, communicator=group
        )
        head = Logits(own, "head", 7, 5, bias=True)
        own.weights.feed("head.weight", weight)
        own.weights.feed("head.bias", bias)
        logits = head(hidden)
    torch.testing.assert_close(logits, hidden @ weight.T + bias)


class Stored(WeightFormat):
    """Integers by channel, but not of the output matrix, by the name that modules have for it."""

    online = False

    def __init__(self, kept: tuple[str, ...] = ("lm_head",)) -> None:
        self._kept = kept

    def storage(self, layer, shape):
        return None if layer in self._kept else Storage(QuantSpec("int8", "channel"))

    def tensors(self, layer, shape, share):
        kinds = {"weight": (shape, torch.int8), "weight_scale": ((shape[0], 1), torch.float32)}
        pieces = tuple((rows, slice(None)) for rows in share.rows)
        return {k: TensorSpec(size, pieces, frozenset({t})) for k, (size, t) in kinds.items()}

    def canonical(self, layer, tensors):
        return tensors


@pytest.mark.parametrize(
    ("name", "adapted", "kept", "kind"),
    [
        ("embed_out", "embed_out", ("lm_head",), None),
        ("embed_out", "embed_out", ("embed_out",), None),
        ("embed_out", "embed_out", (), "int8"),
        ("wte", "lm_head", (), None),  # a tied one, whose rows are looked up
        ("lm_head", "lm_head", (), "int8"),
    ],
)
def test_an_output_matrix_of_a_quantized_checkpoint(ctx, name, adapted, kept, kind) -> None:
    own = replace(ctx, format=Stored(kept))
    Logits(own, name, 8, 16, quantize=True, adapted=adapted)
    wanted = {f"{name}.weight"} | ({f"{name}.weight_scale"} if kind else set())
    assert set(own.weights.expected) == wanted
    [spec] = [s for _, s in own.selector.decisions if isinstance(s, LinearSpec)]
    assert (spec.weight and spec.weight.format) == kind
