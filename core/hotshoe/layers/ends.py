"""Adapters that few have: of a model's ends, the embedding and the output matrix, and of scores.

An adapter changes these by low-rank factors, or has a whole matrix in the place of theirs. At the
ends both take memory in proportion to the vocabulary, for each place on the device. It is taken
when the first adapter that needs it is loaded, so steps with such changes are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers.adapter_ranks import check_factors
from hotshoe.layers.adapters import Changes, Factors, Use
from hotshoe.layers.landing import Piece
from hotshoe.layers.magnitudes import Gain
from hotshoe.layers.split import Split
from hotshoe.slots import LoraOp, LoraSpec

if TYPE_CHECKING:
    from hotshoe.layers.context import BuildContext


class AdaptedEnd:
    """What both ends share.

    Args:
        ctx: The build context, with adapters.
        name: By which adapters call the end.
        shape: [vocab_size, hidden_size].
        sizes: Columns of a and rows of b in files.
        own: This rank's part of the vocabulary.
        product: Columns and rows of the product that adds factors.
        a_shape: Of a on the device, for one adapter.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        shape: tuple[int, int],
        sizes: tuple[int, int],
        own: Split,
        product: tuple[int, int],
        a_shape: tuple[int, int],
    ) -> None:
        assert ctx.adapters is not None
        table = ctx.adapters
        limits, self._facts = table.limits, ctx.selector.facts
        self._dtype, self._device = ctx.torch_dtype, ctx.device
        spec = LoraSpec(*product, limits.max_rank, limits.max_adapters, ctx.dtype)
        self._op: LoraOp = ctx.selector.choose("lora", spec)
        self._table, self._shape, self._sizes, self._own = table, shape, sizes, own
        self._shapes = {
            "a": a_shape,
            "b": (limits.max_rank, product[1]),
            "whole": (own.size, shape[1]),
        }
        self._held: dict[str, Tensor] = {}  # [max_adapters, *shape] of each that was needed
        self._wholes: set[int] = set()  # places
        table.layers[name] = (self, 0)
        table.changes[name] = Changes.APART
        ctx.weight_bytes.append(lambda: sum(held.nbytes for held in self._held.values()))

    def check(self, name: str, index: int, factors: Factors, max_rank: int) -> None:
        """Refuse what does not fit.

        Raises:
            CheckpointError: Factors or a whole matrix have another shape, or there is a magnitude.
        """
        if factors.magnitude is not None:
            raise CheckpointError(
                f"the adapter has a magnitude (DoRA) of {name}, which is served of layers' "
                "linear products alone"
            )
        if factors.whole is None:
            check_factors(name, factors, self._sizes, max_rank)
        elif tuple(factors.whole.shape) != self._shape:
            raise CheckpointError(
                f"the adapter's {name} has shape {list(factors.whole.shape)}, but this model's has "
                f"{list(self._shape)}; adapters add no tokens"
            )

    def host_bytes(self, index: int, factors: Factors) -> int:
        """Return the bytes that the host keeps of this rank's part, or more."""
        tensors = (factors.a, factors.b) if factors.whole is None else (factors.whole,)
        return sum(tensor.numel() for tensor in tensors) * self._dtype.itemsize

    def own_part(self, index: int, factors: Factors) -> Factors:
        """Return copies of this rank's part, and take memory for its like on the device."""
        if factors.whole is not None:
            self._reserve("whole")
            whole = self._own_rows(factors.whole).to(self._dtype, copy=True)
            return Factors(factors.a, factors.b, whole=whole)
        self._reserve("a", "b")
        a, b = self._low(factors)
        return Factors(a.to(self._dtype, copy=True), b.to(self._dtype, copy=True))

    def _low(self, factors: Factors) -> tuple[Tensor, Tensor]:
        """Return a as it lies on the device, and b [rank, rows], scaled."""
        raise NotImplementedError

    def _own_rows(self, matrix: Tensor) -> Tensor:
        rows = [matrix[part] for part in self._own.within(0, self._shape[0])]
        return torch.cat([*rows, matrix.new_zeros(self._own.padding, matrix.shape[1])])

    def _reserve(self, *kinds: str) -> None:
        shapes = {kind: self._shapes[kind] for kind in kinds if kind not in self._held}
        count = self._table.limits.max_adapters
        numbers = sum(count * n * m for n, m in shapes.values())
        self._table.take(numbers * self._dtype.itemsize, self._facts)
        for kind, shape in shapes.items():
            self._held[kind] = torch.zeros(count, *shape, dtype=self._dtype, device=self._device)

    def measure(self, parts: Mapping[int, Factors]) -> dict[int, Gain]:
        """Do nothing: there are no magnitudes."""
        return {}

    def settle(self) -> None:
        """Do nothing, likewise."""

    def pieces(self, index: int, factors: Factors) -> Sequence[Piece]:
        """Return nothing: `put` takes all."""
        return ()

    def put(self, place: int, index: int, factors: Factors | None, gain: Gain | None) -> None:
        """See `AdaptedLinear.put`."""
        self._wholes.discard(place)
        for kind in {"a", "b"} & self._held.keys():
            self._held[kind][place] = 0
        if factors is None:
            return
        if factors.whole is not None:
            self._held["whole"][place] = factors.whole
            self._wholes.add(place)
            return
        self._held["a"][place][tuple(slice(n) for n in factors.a.shape)] = factors.a
        self._held["b"][place, : len(factors.b)] = factors.b

    def _replaced(self, use: Use) -> Iterator[tuple[Tensor, Tensor]]:
        """Return rows of tokens whose adapters have a whole matrix, and it."""
        for place in sorted(self._wholes.intersection(use.tokens.used)):
            rows = (use.host == place).nonzero().flatten()
            yield rows.to(self._device), self._held["whole"][place]


class AdaptedEmbedding(AdaptedEnd):
    """What adapters make of the vectors of tokens.

    Args:
        ctx, name: As above.
        shape: [vocab_size, hidden_size].
        scale: Factor on every row.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        shape: tuple[int, int],
        scale: float,
    ) -> None:
        assert ctx.adapters is not None
        rank, every = ctx.adapters.limits.max_rank, Split(((0, shape[0]),))
        product, a_shape = (rank, shape[1]), (shape[0], rank)
        super().__init__(ctx, name, shape, shape, every, product, a_shape)
        # A row of a is picked by its token, so that the product's own a changes nothing.
        eye = torch.eye(rank, dtype=self._dtype, device=self._device)
        self._eyes = eye.expand(ctx.adapters.limits.max_adapters, rank, rank).contiguous()
        self._scale = scale

    def _low(self, factors: Factors) -> tuple[Tensor, Tensor]:
        return factors.a.T, factors.b.T.float() * (factors.scale * self._scale)

    def __call__(self, y: Tensor, ids: Tensor) -> None:
        """Change y [num_tokens, hidden_size], made of ids [num_tokens], in place."""
        use = self._table.uses.get(len(ids))
        if use is None or use.changes != Changes.APART:
            return
        if "a" in self._held:
            rows = self._held["a"][use.tokens.places.clamp(min=0).long(), ids.long()]
            self._op(y, rows, self._eyes, self._held["b"], use.tokens)
        for at, whole in self._replaced(use):
            y[at] = whole[ids[at].long()] * self._scale


class AdaptedLogits(AdaptedEnd):
    """What adapters make of this rank's part of logits, or of other products in float32.

    Args:
        ctx, name: As above.
        shape: [vocab_size, hidden_size].
        own: This rank's part of the vocabulary.
        bias: The output matrix has a bias.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        shape: tuple[int, int],
        own: Split,
        bias: bool,
    ) -> None:
        assert ctx.adapters is not None
        product, a_shape = (shape[1], own.size), (ctx.adapters.limits.max_rank, shape[1])
        super().__init__(ctx, name, shape, shape[::-1], own, product, a_shape)
        self._bias = bias

    def check(self, name: str, index: int, factors: Factors, max_rank: int) -> None:
        """Refuse what does not fit.

        Raises:
            CheckpointError: As above, or a whole matrix meets a bias.
        """
        super().check(name, index, factors, max_rank)
        if factors.whole is not None and self._bias:
            raise CheckpointError(
                f"the adapter has a whole {name}, which is served without a bias alone"
            )

    def _low(self, factors: Factors) -> tuple[Tensor, Tensor]:
        return factors.a, self._own_rows(factors.b).T.float() * factors.scale

    def __call__(self, y: Tensor, x: Tensor) -> None:
        """Change y [n, outputs] float32, made of x [n, hidden_size], in place."""
        use = self._table.uses.get(len(x))
        if use is None or use.changes != Changes.APART:
            return
        if "a" in self._held:
            more = torch.zeros(y.shape, dtype=self._dtype, device=self._device)
            self._op(more, x, self._held["a"], self._held["b"], use.tokens)
            y += more
        for at, whole in self._replaced(use):
            y[at] = (x[at] @ whole.T).float()
