"""Adapters of experts: what they add to both products of each expert, beside slot `moe`.

Operations that multiply, gate and add up in one call leave no room between their products. So a
step with such adapters asks for `AdaptableMoeOp.adapted`, which calls back between them; where an
operation has nothing of the kind, such adapters are refused. Slot `lora` adds them, by places that
each stand for an adapter's part of one expert. They take memory on the device when the first one is
loaded. From then on steps are recorded with them, if no operation asks the device for anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers.adapter_ranks import check_factors
from hotshoe.layers.adapters import Changes, Factors, Use
from hotshoe.layers.experts import NOWHERE
from hotshoe.layers.formats import Share
from hotshoe.layers.landing import Piece
from hotshoe.layers.magnitudes import Gain
from hotshoe.slots import (
    AdaptableMoeOp,
    LinearSpec,
    LoraOp,
    LoraSpec,
    LoraTokens,
    MoeOp,
    MoeSpec,
    RecordableMoeOp,
)

if TYPE_CHECKING:
    from hotshoe.layers.context import BuildContext
    from hotshoe.layers.experts import Share as Held
    from hotshoe.layers.matrix import Matrix
    from hotshoe.layers.moe import Mixture

#: Name, size and this rank's part of a matrix.
Named = tuple[str, int, Share]


class AdaptedExperts:
    """What adapters make of the experts of one mixture that this rank holds.

    Args:
        ctx: The build context, with adapters.
        spec: The mixture.
        op: Computes it.
        experts: Of each expert that adapters may change here its number, the matrices of its first
            product and the second.
        modules: How adapters call all experts of the mixture together.
        interleaved: Rows of gate and up take turns in tensors of all experts.
        owners: [places + 1] int32, the index among `experts` of each place's, as `Share.owners`;
            None where they are the same.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: MoeSpec,
        op: MoeOp,
        experts: Sequence[tuple[int, Sequence[Named], Named]],
        modules: Iterable[str],
        interleaved: bool,
        owners: Tensor | None,
    ) -> None:
        assert ctx.adapters is not None
        self._table, self._spec, self._owners = ctx.adapters, spec, owners
        self._adaptable = isinstance(op, AdaptableMoeOp)
        self._facts, self._dtype, self._device = ctx.selector.facts, ctx.torch_dtype, ctx.device
        self._experts, self._interleaved = experts, interleaved
        _, first, (_, hidden, _) = experts[0]
        self._sides, self._rows = len(first) + 1, sum(size for _, size, _ in first)
        self._hidden, self._inner = hidden, self._rows // (1 + spec.gated)
        self._held: dict[str, Tensor] = {}  # a and b of both products, once any is needed
        self._products: dict[str, tuple[LoraSpec, LoraOp]] = {}
        recordable = isinstance(op, RecordableMoeOp) and op.recordable
        for product, side, count in (("gate_up", spec.gate_up, len(first)), ("down", spec.down, 1)):
            lora = self._lora(side, count)
            self._products[product] = lora, ctx.selector.choose("lora", lora)
            recordable &= ctx.selector.decisions["lora", lora].native  # the reference may wait
        self._matrices = [
            (place, side, matrix)
            for place, (_, first, second) in enumerate(experts)
            for side, matrix in enumerate((*first, second))
        ]
        for index, (_, _, (name, _, _)) in enumerate(self._matrices):
            self._table.layers[name] = (self, index)
            self._table.changes[name] = Changes.EXPERTS if recordable else Changes.APART
        if recordable:
            self._table.mixtures.append(self)
        for module in modules:
            self._table.stacks[module] = self
        ctx.weight_bytes.append(lambda: sum(held.nbytes for held in self._held.values()))

    def hear_of(self, names: Iterable[str]) -> None:
        """Record the steps with adapters of matrices of experts that other ranks alone have."""
        if self in self._table.mixtures:
            self._table.changes |= dict.fromkeys(names, Changes.EXPERTS)

    def split(self, module: str, factors: Factors) -> dict[str, Factors]:
        """Return what factors of a tensor of all experts are to the matrices here.

        Such a tensor is [num_experts, rows, columns] or transposed, and factors say only by their
        shapes which one and how: a is [num_experts * rank, inputs], b [outputs, rank *
        num_experts].

        Args:
            module: By which the adapter calls all experts.
            factors: Of one of the tensors.

        Raises:
            CheckpointError: They fit no tensor of the mixture, or there is no telling how.
        """
        count = self._spec.num_experts
        if factors.experts != count:
            raise CheckpointError(
                f"the adapter has factors of {factors.experts} experts of {module}, but this "
                f"model has {count}; it was made for another model"
            )
        a = factors.a.view(count, -1, factors.a.shape[1])
        b = factors.b.view(len(factors.b), -1, count).permute(2, 0, 1)
        hidden, inner = self._hidden, self._inner
        found = a.shape[2], b.shape[1]
        sides = {"first": (hidden, self._rows), "second": (inner, hidden)}
        fits = [(s, t) for s, size in sides.items() for t in (0, 1) if found == size[:: 1 - 2 * t]]
        if len(fits) != 1:
            raise CheckpointError(
                f"the adapter's factors of {module} have {found[0]} inputs and {found[1]} outputs, "
                "which is no tensor of this model's experts, or more than one; save factors expert "
                "by expert"
            )
        [(which, transposed)] = fits
        if transposed:
            a, b = b.transpose(1, 2), a.transpose(1, 2)
        parts: dict[str, Factors] = {}
        for expert, first, (second, _, _) in self._experts:
            low, high = a[expert], b[expert]
            if which == "second":
                parts[second] = factors._replace(a=low, b=high, experts=1)
                continue
            pieces = (
                [high[i :: len(first)] for i in range(len(first))]
                if self._interleaved
                else high.tensor_split(len(first))
            )
            for (name, _, _), piece in zip(first, pieces, strict=True):
                parts[name] = factors._replace(a=low, b=piece, experts=1)
        return parts

    def check(self, name: str, index: int, factors: Factors, max_rank: int) -> None:
        """Refuse what does not fit, or cannot be computed here.

        Raises:
            CheckpointError: Factors have another shape; there is a magnitude, or a whole matrix;
                the operation cannot be interrupted.
        """
        if not self._adaptable:
            raise CheckpointError(
                f"the adapter changes {name}, an expert's matrix, and what computes slot moe here "
                "adds adapters to no expert; start with --kernel moe=reference"
            )
        if factors.magnitude is not None or factors.whole is not None:
            raise CheckpointError(
                f"the adapter has a magnitude (DoRA) or a whole matrix of {name}, and is served of "
                "experts by low-rank factors alone"
            )
        _, side, (_, size, _) = self._matrices[index]
        inputs = self._inner if side == self._sides - 1 else self._hidden
        check_factors(name, factors, (inputs, size), max_rank)

    def host_bytes(self, index: int, factors: Factors) -> int:
        """Return the bytes that the host keeps of this rank's part."""
        share = self._matrices[index][2][2]
        columns = len(range(*share.columns.indices(factors.a.shape[1])))
        rows = share.num_rows - share.padding
        return len(factors.a) * (columns + rows) * self._dtype.itemsize

    def own_part(self, index: int, factors: Factors) -> Factors:
        """Return copies of this rank's part, and take memory for its like on the device."""
        self.open()
        share = self._matrices[index][2][2]
        b = torch.cat([factors.b[rows] for rows in share.rows]).float() * factors.scale
        a = factors.a[:, share.columns]
        return Factors(a.to(self._dtype, copy=True), b.to(self._dtype, copy=True))

    @property
    def is_open(self) -> bool:
        """Whether there is memory for factors on the device."""
        return bool(self._held)

    def open(self) -> None:
        """Take memory for the factors of all adapters, once.

        Raises:
            MemoryLimitError: The device has less.
        """
        if self._held:
            return
        shapes = {
            f"{name}.{kind}": (spec.max_adapters, spec.rank, size)
            for name, (spec, _) in self._products.items()
            for kind, size in (("a", spec.in_features), ("b", spec.out_features))
        }
        numbers = sum(torch.Size(shape).numel() for shape in shapes.values())
        self._table.take(numbers * self._dtype.itemsize, self._facts)
        self._held = {
            name: torch.zeros(shape, dtype=self._dtype, device=self._device)
            for name, shape in shapes.items()
        }

    def shut(self) -> None:
        """Give the memory back."""
        self._table.take(-sum(held.nbytes for held in self._held.values()), self._facts)
        self._held = {}

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
        if not self._held:
            return
        expert, side, _ = self._matrices[index]
        name, ranks, rows = self._where(side)
        at = place * len(self._experts) + expert
        a, b = (self._held[f"{name}.{kind}"][at, ranks] for kind in "ab")
        a.zero_()
        b.zero_()
        if factors is not None:
            rank = len(factors.a)
            a[:rank] = factors.a
            b[:rank, rows] = factors.b.T

    def _lora(self, side: LinearSpec, count: int) -> LoraSpec:
        """Ask for what adapters add to a product of so many stacked matrices."""
        limits = self._table.limits
        places, rank = limits.max_adapters * len(self._experts), limits.max_rank * count
        parts = (side.out_features // count,) * count
        dtype = self._spec.dtype
        return LoraSpec(side.in_features, side.out_features, rank, places, dtype, parts, late=True)

    def _where(self, side: int) -> tuple[str, slice, slice]:
        """Return the product of one of an expert's matrices, its ranks and its outputs."""
        first, rank = self._sides - 1, self._table.limits.max_rank
        if side == first:
            return "down", slice(0, rank), slice(None)
        width = self._spec.gate_up.out_features // first
        return (
            "gate_up",
            slice(side * rank, (side + 1) * rank),
            slice(side * width, width + side * width),
        )

    def of(self, num_tokens: int) -> Between | None:
        """Return what changes the products of a step of so many tokens, if an adapter may."""
        use = self._table.uses.get(num_tokens)
        if use is None or use.changes < Changes.EXPERTS or not self._held:
            return None
        return Between(self, use)

    def places(self, use: Use, tokens: Tensor, experts: Tensor) -> LoraTokens:
        """Return the place of each row's adapter and expert together, found on the device.

        Args:
            use: Of the step.
            tokens, experts: See `hotshoe.slots.ProductChange`.
        """
        spec, _ = self._products["gate_up"]
        owners = experts if self._owners is None else self._owners[experts]
        # Without an adapter the sum is below 0, as is that of an expert which is elsewhere.
        places = torch.add(owners, use.tokens.places[tokens], alpha=len(self._experts))
        places = places.to(torch.int32)
        nothing = places.new_empty(0)
        return LoraTokens(places, nothing, nothing, range(spec.max_adapters))

    def add(self, name: str, y: Tensor, x: Tensor, tokens: LoraTokens) -> None:
        """Add to y, in place, what adapters make of x.

        Args:
            name, y, x: See `hotshoe.slots.ProductChange`.
            tokens: From `places`.
        """
        a, b = (self._held[f"{name}.{kind}"] for kind in "ab")
        self._products[name][1](y, x, a, b, tokens)


class Between:
    """What the adapters of a step make of one mixture; see `hotshoe.slots.ProductChange`."""

    def __init__(self, experts: AdaptedExperts, use: Use) -> None:
        self._experts, self._use = experts, use
        self._places: LoraTokens | None = None

    def __call__(self, name: str, y: Tensor, x: Tensor, tokens: Tensor, experts: Tensor) -> None:
        """Add to y, in place; both products of the same rows have the same places."""
        if name == "gate_up":
            self._places = self._experts.places(self._use, tokens, experts)
        assert self._places is not None
        self._experts.add(name, y, x, self._places)


def adapted_experts(
    ctx: BuildContext,
    prefix: str,
    mixture: Mixture,
    spec: MoeSpec,
    op: MoeOp,
    experts: Sequence[tuple[Matrix, Matrix]],
    held: Held,
) -> AdaptedExperts | None:
    """Return what adapters make of a mixture; None where none may change it.

    Args:
        ctx, prefix, mixture: Of the layer.
        spec, op: Compute it.
        experts, held: The matrices of this rank's experts, and which ones these are.
    """
    if ctx.adapters is None:
        return None
    ctx.adapters.weights = ctx.weights
    first, second = (matrix.shares() for matrix in experts[0])  # those of others are cut alike

    def named(number: int) -> tuple[int, list[Named], Named]:
        names = mixture.matrices_of(prefix, number)
        parts = [(name, *part[1:]) for name, part in zip(names, (*first, *second), strict=True)]
        return number, parts[:-1], parts[-1]

    # Factors of experts that move stay, and so are those of all of them.
    numbers = range(mixture.num_experts) if held.moves else held.experts
    found = [named(number) for number in numbers]
    stacked = mixture.names.stacked
    own = mixture.names.down.partition(".{}")[0]
    if stacked is not None:
        own = stacked.gate_up.rpartition(".")[0]
    modules = {prefix + own, f"{prefix}mlp.experts"}  # as transformers 5 calls Mixtral's, too
    interleaved = stacked is not None and stacked.interleaved
    names = [name for _, first, second in found for name, *_ in (*first, second)]
    if not ctx.adapters.takes((*names, *modules)):
        return None
    owners = held.owners if held.moves else None
    if held.placement is not None and owners is None:
        indices = (*range(len(numbers)), NOWHERE)
        owners = torch.tensor(indices, dtype=torch.int32, device=ctx.device)
    layer = AdaptedExperts(ctx, spec, op, found, modules, interleaved, owners)
    others = set(range(mixture.num_experts)).difference(numbers)
    layer.hear_of(name for number in others for name in mixture.matrices_of(prefix, number))
    return layer
