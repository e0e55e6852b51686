"""Low-rank adapters (LoRA) of linear layers: who has which, and what they add to a step.

Adapters that were loaded stay in host memory; those that a step uses lie in one of a few places on
the device, the longest unused giving way. Every linear layer has its part of each place. What
magnitudes (DoRA) scale is in `magnitudes`. Nothing here reads files or knows requests.

Source: Low-rank adaptation, arXiv:2106.09685.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, ConfigError, MemoryLimitError
from hotshoe.layers.formats import Share
from hotshoe.layers.landing import Landing, Piece
from hotshoe.layers.magnitudes import Base, Gain, Gains, Low
from hotshoe.platform import DeviceFacts
from hotshoe.slots import LoraOp, LoraSpec, LoraTokens, TransferOp
from hotshoe.slots.reference.lora import tokens_of
from hotshoe.suggest import did_you_mean

if TYPE_CHECKING:
    from hotshoe.layers.context import BuildContext


class Factors(NamedTuple):
    """One matrix's adapter as files have it: W + scale * b a.

    a: [rank, in_features]. b: [out_features, rank]. magnitude: [out_features], the lengths that
    rows of the sum are scaled to (DoRA); None leaves them as they are. whole: A matrix in the place
    of W, beside factors without numbers. experts: Of a tensor of so many experts' matrices; a is
    [experts * rank, in_features] then, b [out_features, rank * experts].
    """

    a: Tensor
    b: Tensor
    magnitude: Tensor | None = None
    scale: float = 1.0
    whole: Tensor | None = None
    experts: int = 1


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """How many adapters lie on the device at once, the most that their rank may be, and the last
    parts of the names of matrices that they may change; of all, if there are none."""

    max_adapters: int
    max_rank: int
    targets: tuple[str, ...] = ()


class Use(NamedTuple):
    """Which adapter each token of a step has.

    Attributes:
        tokens: On the device.
        host: The places of tokens on the host.
        apart: Some adapter has what no recording knows: magnitudes, or an end of the model.
    """

    tokens: LoraTokens
    host: Tensor
    apart: bool = False


class Adapted(Protocol):
    """A layer that adapters change, as `AdaptedLinear` does."""

    def check(self, name: str, index: int, factors: Factors, max_rank: int) -> None: ...

    def own_part(self, index: int, factors: Factors) -> Factors: ...

    def pieces(self, index: int, factors: Factors) -> Sequence[Piece]: ...

    def measure(self, parts: Mapping[int, Factors]) -> dict[int, Gain]: ...

    def settle(self) -> None: ...

    def put(self, place: int, index: int, factors: Factors | None, gain: Gain | None) -> None: ...


class Stacked(Protocol):
    """Layers whose adapters may come together."""

    def split(self, module: str, factors: Factors) -> dict[str, Factors]: ...


def check_factors(name: str, factors: Factors, sizes: tuple[int, int], max_rank: int) -> None:
    """Refuse low-rank factors of another shape.

    Args:
        name: Of the matrix.
        factors: Of it.
        sizes: Columns of a and rows of b.
        max_rank: Highest rank.

    Raises:
        CheckpointError: They do not fit the matrix, or their rank is above the limit.
    """
    rank = len(factors.a)
    found = (tuple(factors.a.shape), tuple(factors.b.shape))
    if found != ((rank, sizes[0]), (sizes[1], rank)):
        raise CheckpointError(
            f"the adapter's factors of {name} have shapes {list(found[0])} and {list(found[1])}, "
            f"but this model's matrix is {[sizes[1], sizes[0]]}; it was made for another model"
        )
    if rank > max_rank:
        raise CheckpointError(
            f"the adapter's rank is {rank}, above --max-lora-rank {max_rank}; raise it"
        )


class AdaptedLinear:
    """What adapters add to one product of stacked matrices: this rank's part.

    Args:
        ctx: The build context.
        table: Who has adapters.
        shares: Name, size and this rank's part of each matrix, in the order of y.
        in_features: Columns of the whole matrices.
        spec: The product's sizes on this rank.
        base: The product.
    """

    def __init__(
        self,
        ctx: BuildContext,
        table: AdapterTable,
        shares: Sequence[tuple[str, int, Share]],
        in_features: int,
        spec: LoraSpec,
        base: Base,
    ) -> None:
        self._op: LoraOp = ctx.selector.choose("lora", spec)
        self._table, self._shares, self._in_features = table, shares, in_features
        self._rank = spec.rank // len(shares)
        shape, place = (spec.max_adapters, spec.rank), (ctx.torch_dtype, ctx.device)
        self._a = torch.zeros(*shape, spec.in_features, dtype=place[0], device=place[1])
        self._b = torch.zeros(*shape, spec.out_features, dtype=place[0], device=place[1])
        self._base = base
        self._gains: Gains | None = None  # until an adapter has magnitudes
        self.nbytes = self._a.nbytes + self._b.nbytes
        for index, (name, _, _) in enumerate(shares):
            table.layers[name] = (self, index)

    def __call__(self, y: Tensor, x: Tensor) -> None:
        """Add to y [num_tokens, out_features], in place, what the step's adapters make of x."""
        if self._table.uses:
            use = self._table.uses[len(x)]
            self._op(y, x, self._a, self._b, use.tokens)
            if use.apart and self._gains is not None:
                self._gains(y, use.tokens.places)

    def check(self, name: str, index: int, factors: Factors, max_rank: int) -> None:
        """Refuse factors of another shape.

        Raises:
            CheckpointError: They do not fit the matrix, or their rank is above the limit.
        """
        size = self._shares[index][1]
        if factors.whole is not None:
            raise CheckpointError(
                f"the adapter has a whole {name} (modules_to_save), which is served of embeddings "
                "and output matrices alone"
            )
        check_factors(name, factors, (self._in_features, size), max_rank)
        if factors.magnitude is None:
            return
        if factors.magnitude.shape != (size,):
            raise CheckpointError(
                f"the adapter's magnitudes of {name} have shape {list(factors.magnitude.shape)}, "
                f"but this model's matrix has {size} outputs; it was made for another model"
            )
        if self._base.spec.activation is not None:  # what it makes of unit vectors is not W
            raise CheckpointError(
                f"the adapter has a magnitude (DoRA) of {name}, whose product quantizes its input; "
                "choose a quantization of weights alone, or an adapter without magnitudes"
            )

    def own_part(self, index: int, factors: Factors) -> Factors:
        """Return copies of this rank's part of both factors, in the type of y; b is scaled."""
        share = self._shares[index][2]
        a = factors.a[:, share.columns]
        b = torch.cat([factors.b[rows] for rows in share.rows]).float() * factors.scale
        a, b = (t.to(self._a.dtype, copy=True) for t in (a, b))
        if factors.magnitude is None:
            return Factors(a, b)
        return Factors(a, b, torch.cat([factors.magnitude[rows] for rows in share.rows]).float())

    def measure(self, parts: Mapping[int, Factors]) -> dict[int, Gain]:
        """Return what the magnitudes of an adapter scale, by the index of the matrix.

        All ranks call this alike, as each may have some columns alone.
        """
        if self._gains is None:
            self._gains = Gains(self._base, len(self._a), str(self._a.device))
        lows = []
        for index, (a, b, magnitude, *_) in parts.items():
            assert magnitude is not None
            lows.append(Low(self._rows(index, len(b)), a, b, magnitude))
        return dict(zip(parts, self._gains.measure(lows), strict=True))

    def settle(self) -> None:
        """Forget the weights, which have changed."""
        if self._gains is not None:
            self._gains.settle()

    def _rows(self, index: int, count: int) -> slice:
        """Return where a matrix's first outputs lie among all."""
        before = sum(share.num_rows for _, _, share in self._shares[:index])
        return slice(before, before + count)

    def pieces(self, index: int, factors: Factors) -> Sequence[Piece]:
        """Return where the rows of one matrix's factors lie, and their numbers.

        Rows of b are those of all stacked matrices, with zeros for the others.
        """
        first, rank = index * self._rank, len(factors.a)
        b = factors.b.new_zeros(rank, self._b.shape[2])
        b[:, self._rows(index, len(factors.b))] = factors.b.T
        rows = slice(first, first + rank)
        targets = (held[:, rows].view(len(held), -1) for held in (self._a, self._b))
        return list(zip(targets, (factors.a.flatten(), b.flatten()), strict=True))

    def put(self, place: int, index: int, factors: Factors | None, gain: Gain | None) -> None:
        """Take what `pieces` does not have of one matrix: its magnitudes."""
        if self._gains is not None:
            size = self._shares[index][2].num_rows if gain is None else len(gain.factor)
            self._gains.put(place, self._rows(index, size), gain)


class AdapterTable:
    """All adapters of a model, by the name that they were loaded under.

    Attributes:
        layers: By a matrix's name in the checkpoint: its layer, and which of its matrices it is.
        uses: The adapter of each token in the present step, by the number of rows that a layer
            may get; empty for a step without adapters.
        eager: Names of matrices whose adapters no recording knows: of experts and both ends.
        stacks: By a name for all experts of a layer: what splits factors of all of them.
        shared: Names of embeddings whose matrix also makes logits, which stay unchanged.
        is_elsewhere: Tells whether other stages have a tensor.
    """

    def __init__(self, limits: AdapterLimits) -> None:
        self.limits = limits
        self._known: set[str] = set()  # last parts of all matrices' names
        self.layers: dict[str, tuple[Adapted, int]] = {}
        self.uses: dict[int, Use] = {}
        self._stored: dict[str, dict[str, Factors]] = {}
        self._gains: dict[str, dict[str, Gain]] = {}  # of those with magnitudes
        self._apart: set[str] = set()  # adapters that have what no recording knows
        self.eager: set[str] = set()
        self.stacks: dict[str, Stacked] = {}
        self.shared: set[str] = set()
        self.is_elsewhere: Callable[[str], bool] = lambda name: False
        self._taken_bytes = 0
        self._landing = Landing()
        self.reserve(0, "cpu")
        self._places: OrderedDict[str, int] = OrderedDict()

    def takes(self, names: Iterable[str]) -> bool:
        """Tell whether adapters may change any of these matrices; all of a model are asked for."""
        ends = {name.rpartition(".")[2] for name in names}
        self._known |= ends
        return not self.limits.targets or not ends.isdisjoint(self.limits.targets)

    def check_targets(self) -> None:
        """Refuse targets that no matrix of a whole model has; it is built.

        Raises:
            ConfigError: With the first of them.
        """
        self.takes((*self.layers, *self.stacks))
        for name in self.limits.targets:
            if name not in self._known:
                raise ConfigError(
                    f"lora_target_modules names {name}, but no matrix of this model ends so"
                    f"{did_you_mean(name, self._known)}"
                )

    def adapt(
        self,
        ctx: BuildContext,
        shares: Sequence[tuple[str, int, Share]],
        in_features: int,
        base: Base,
    ) -> AdaptedLinear:
        """Register a linear layer, and return the operation that adds its adapters' part.

        Raises:
            MemoryLimitError: All places of adapters together need more than the device has.
        """
        self.is_elsewhere = ctx.weights.is_elsewhere
        rank = self.limits.max_rank * len(shares)
        sizes = (base.spec.in_features, base.spec.out_features)
        parts = tuple(share.num_rows for _, _, share in shares)
        spec = LoraSpec(*sizes, rank, self.limits.max_adapters, ctx.dtype, parts)
        numbers = rank * sum(sizes)
        landing = self._landing.grow(numbers, ctx.torch_dtype, ctx.device)
        places = self.limits.max_adapters * numbers * ctx.torch_dtype.itemsize
        self.take(places + landing, ctx.selector.facts)
        layer = AdaptedLinear(ctx, self, shares, in_features, spec, base)
        ctx.weight_bytes.append(lambda: layer.nbytes + landing)
        return layer

    def take(self, nbytes: int, facts: DeviceFacts) -> None:
        """Count memory that a layer is about to take for places of adapters.

        Raises:
            MemoryLimitError: All places of adapters together need more than the device has.
        """
        if self._taken_bytes + nbytes > facts.memory_bytes:
            raise MemoryLimitError(
                f"the places of adapters take more than the {facts.memory_bytes / 2**30:.1f} GiB "
                f"of {facts.name}; lower --max-loras or --max-lora-rank"
            )
        self._taken_bytes += nbytes

    def own(self, factors: Mapping[str, Factors]) -> dict[str, Factors]:
        """Return the part of an adapter that belongs to this stage's layers.

        Args:
            factors: By the names of the matrices that the adapter changes.

        Raises:
            CheckpointError: The model lacks a matrix of the adapter, or its shape does not fit a
                linear layer.
        """
        found = {}
        for matrix, pair in self._unstacked(factors):
            end = matrix.rpartition(".")[2]
            if self.limits.targets and end not in self.limits.targets:
                raise CheckpointError(
                    f"the adapter changes {matrix}, and --lora-target-modules leaves {end} out; "
                    "name it there"
                )
            known = matrix in self.layers
            if self.is_elsewhere(f"{matrix}.weight") or (matrix in self.shared and not known):
                continue
            if not known:
                raise CheckpointError(
                    f"the adapter changes {matrix}, which is no layer of this model that takes "
                    "adapters (linear layers, experts, embedding and output matrix do, not routers)"
                )
            layer, index = self.layers[matrix]
            layer.check(matrix, index, pair, self.limits.max_rank)
            found[matrix] = pair
        return found

    def _unstacked(self, factors: Mapping[str, Factors]) -> Iterator[tuple[str, Factors]]:
        """Go through matrices one by one; those of all experts come as the matrices of each."""
        for matrix, pair in factors.items():
            module = matrix.replace(".base_layer", "")  # one for each tensor but the first
            stack = self.stacks.get(module) if pair.experts > 1 else None
            yield from ((matrix, pair),) if stack is None else stack.split(module, pair).items()

    def load(self, name: str, factors: Mapping[str, Factors]) -> None:
        """Keep an adapter in host memory, in place of one of the same name.

        Args:
            name: Of the adapter.
            factors: From `own`.
        """
        stored, pieces = {}, list[Piece]()
        for matrix, pair in factors.items():
            layer, index = self.layers[matrix]
            part = layer.own_part(index, pair)
            found = layer.pieces(index, part)
            pieces += found
            if not found or part.magnitude is not None:
                stored[matrix] = part
        gains = self._measure(stored)
        self.drop(name)
        if gains or any(matrix in self.eager for matrix in stored):
            self._apart.add(name)
        self._stored[name] = stored
        kind = tuple((matrix, len(pair.a)) for matrix, pair in factors.items())
        self._landing.keep(name, kind, pieces)
        if gains:
            self._gains[name] = gains

    def _measure(self, stored: Mapping[str, Factors]) -> dict[str, Gain]:
        """Return what an adapter's magnitudes scale, by matrix; a product's matrices together."""
        layers: dict[Adapted, dict[int, str]] = {}
        for matrix, part in stored.items():
            if part.magnitude is not None:
                layer, index = self.layers[matrix]
                layers.setdefault(layer, {})[index] = matrix
        gains: dict[str, Gain] = {}
        for layer, names in layers.items():
            found = layer.measure({index: stored[name] for index, name in names.items()})
            gains |= {names[index]: gain for index, gain in found.items()}
        return gains

    def settle(self) -> None:
        """Compute the norms that magnitudes (DoRA) scale, after the model got new weights."""
        for layer, _ in self.layers.values():
            layer.settle()
        for name in self._gains:
            self._gains[name] = self._measure(self._stored[name])
            self._places.pop(name, None)

    def drop(self, name: str) -> None:
        """Forget an adapter, if there is one of this name."""
        self._stored.pop(name, None)
        self._landing.drop(name)
        self._gains.pop(name, None)
        self._apart.discard(name)
        self._places.pop(name, None)

    def begin(
        self, names: Sequence[str | None], counts: Sequence[int], sample_at: Tensor, device: str
    ) -> bool:
        """Bring a step's adapters onto the device; tell whether there are any.

        Args:
            names: Of each request's adapter; at most `max_adapters` different ones.
            counts: Tokens of each request.
            sample_at: [s] int64 on the host: the tokens that go on behind the last mixer.
            device: Where the step runs.
        """
        self.uses = {}
        wanted = list(dict.fromkeys(name for name in names if name is not None))
        if not wanted:
            return False
        for name in wanted:
            self._place_of(name, wanted)
        of_request = [-1 if name is None else self._places[name] for name in names]
        places = torch.repeat_interleave(
            torch.tensor(of_request, dtype=torch.int32), torch.tensor(counts)
        )
        apart = not self._apart.isdisjoint(wanted)
        for some in (places[sample_at], places) if len(sample_at) < len(places) else (places,):
            tokens = tokens_of(some, self.limits.max_adapters, device)
            self.uses[len(some)] = Use(tokens, some, apart)
        return True

    def reserve(self, num_tokens: int, device: str, transfer: TransferOp | None = None) -> None:
        """Take memory at fixed addresses for recorded steps of up to `num_tokens` tokens, and for
        an adapter on its way to the device, to which an operation copies."""
        if transfer is not None:
            self._landing.open(device, transfer)
        nobody = torch.full((num_tokens,), -1, dtype=torch.int32)
        self._recorded = tokens_of(nobody, self.limits.max_adapters, device)

    def pad(self, size: int) -> bool:
        """Write the adapter of each token of the present step for a recording of `size` tokens.

        Tokens behind those of the step have no adapter. Returns False if an adapter of the step
        cannot be recorded.
        """
        if any(use.apart for use in self.uses.values()):
            return False
        (places, order, starts, _), own = self._recorded, max(self.uses, default=0)
        places.fill_(-1)
        starts.zero_()
        if own:
            tokens = self.uses[own].tokens
            places[:own], order[:own] = tokens.places, tokens.order
            starts.copy_(tokens.starts)
        every = range(self.limits.max_adapters)
        tokens = LoraTokens(places[:size], order[:size], starts, every)
        self.uses[size] = Use(tokens, places[:0])
        return True

    def _place_of(self, name: str, wanted: Sequence[str]) -> None:
        """Bring an adapter into a place on the device, and record its use."""
        if name in self._places:
            self._places.move_to_end(name)
            return
        if len(self._places) < self.limits.max_adapters:
            taken = set(self._places.values())
            place = next(p for p in range(self.limits.max_adapters) if p not in taken)
        else:
            oldest = next(other for other in self._places if other not in wanted)
            place = self._places.pop(oldest)
        stored, gains = self._stored[name], self._gains.get(name, {})
        self._landing.fill(place, name)
        for matrix, (layer, index) in self.layers.items():
            layer.put(place, index, stored.get(matrix), gains.get(matrix))
        self._places[name] = place
