"""Low-rank adapters (LoRA) of linear layers: who has which, and what they add to a step.

Adapters that were loaded stay in host memory; those that a step uses lie in one of a few places on
the device, the longest unused giving way. Every linear layer has its part of each place. What
magnitudes (DoRA) scale is in `magnitudes`. Nothing here reads files or knows requests.

Source: Low-rank adaptation, arXiv:2106.09685.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers.adapter_names import MatrixNames
from hotshoe.layers.adapter_ranks import Ranks
from hotshoe.layers.adapter_room import DeviceRoom, HostRoom
from hotshoe.layers.adapter_tokens import Heads, Stage, TokenPlaces
from hotshoe.layers.landing import LANDINGS, Landing, Piece
from hotshoe.layers.magnitudes import Gain
from hotshoe.layers.weights import WeightTable
from hotshoe.platform import DeviceFacts
from hotshoe.slots import LoraTokens, TransferOp
from hotshoe.slots.reference.lora import Ints, tokens_of
from hotshoe.suggest import did_you_mean

if TYPE_CHECKING:
    from hotshoe.layers.expert_adapters import AdaptedExperts


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
    """What adapters may be, and how many there are.

    Attributes:
        max_adapters: Places on the device.
        max_rank: Highest rank.
        targets: Last parts of the names of matrices that they may change; of all, if there are
            none.
        ahead: Places, among all, that are left for adapters of later steps.
        host_bytes: Host memory for all loaded adapters; None for any.
    """

    max_adapters: int
    max_rank: int
    targets: tuple[str, ...] = ()
    ahead: int = 0
    host_bytes: int | None = None


class Changes(IntEnum):
    """What adapters change of a step; each number includes those before.

    A recording serves steps of one number. None knows what is `APART`: magnitudes, the ends of the
    model, experts whose operation cannot be recorded.
    """

    NOTHING = 0
    LINEAR = 1
    LATENTS = 2
    EXPERTS = 3
    APART = 4


class Use(NamedTuple):
    """Which adapter each token of a step has.

    Attributes:
        tokens: On the device.
        host: The places of tokens on the host.
        changes: What the adapters of all tokens change.
    """

    tokens: LoraTokens
    host: Tensor
    changes: Changes


class Adapted(Protocol):
    """A layer that adapters change, as `AdaptedLinear` does."""

    def check(self, name: str, index: int, factors: Factors, max_rank: int) -> None: ...

    def host_bytes(self, index: int, factors: Factors) -> int: ...

    def own_part(self, index: int, factors: Factors) -> Factors: ...

    def pieces(self, index: int, factors: Factors) -> Sequence[Piece]: ...

    def measure(self, parts: Mapping[int, Factors]) -> dict[int, Gain]: ...

    def settle(self) -> None: ...

    def put(self, place: int, index: int, factors: Factors | None, gain: Gain | None) -> None: ...


class Stacked(Protocol):
    """Layers whose adapters may come together."""

    def split(self, module: str, factors: Factors) -> dict[str, Factors]: ...


def _stay(arrays: Sequence[Ints]) -> Sequence[Tensor]:
    """Leave arrays where they are, as where the host computes."""
    return [torch.from_numpy(array) for array in arrays]


class AdapterTable:
    """All adapters of a model, by the name that they were loaded under.

    Args:
        limits: What they may be.
        free: See `DeviceRoom`.

    Attributes:
        device: Memory of places.
        ranks: Of each matrix in each place.
        layers: By a matrix's name in the checkpoint: its layer, and which of its matrices it is.
        uses: The adapter of each token in the present step, by the number of rows that a layer
            may get; empty for a step without adapters.
        changes: What adapters of a matrix change, by its name, where that is no linear layer;
            experts of other ranks are among them.
        heads: Tokens by heads of latent attention, by their number.
        mixtures: Those that recorded steps may stop in.
        stacks: By a name for all experts of a layer: what splits factors of all of them.
        shared: Names of matrices whose adapters change nothing: those of embeddings that also make
            logits, and of parts of modules that nobody uses.
        weights: Of the model.
    """

    def __init__(self, limits: AdapterLimits, free: Callable[[], int] | None = None) -> None:
        self.limits = limits
        self._known: set[str] = set()  # last parts of all matrices' names
        self.layers: dict[str, tuple[Adapted, int]] = {}
        self.uses: dict[int, Use] = {}
        self._stored: dict[str, dict[str, Factors]] = {}
        self._gains: dict[str, dict[str, Gain]] = {}  # of those with magnitudes
        self._changes: dict[str, Changes] = {}  # by adapter
        self.changes: dict[str, Changes] = {}
        self.heads: dict[int, Heads] = {}
        self.mixtures: list[AdaptedExperts] = []
        self.stacks: dict[str, Stacked] = {}
        self.shared: set[str] = set()
        self.weights = WeightTable()
        self.device = DeviceRoom(free)
        self.ranks = Ranks(limits.max_adapters)
        self._room = HostRoom(limits.host_bytes)
        self._landing = Landing()
        self.reserve(0, (_stay, _stay))
        self._places: OrderedDict[str, int] = OrderedDict()
        self._rest: set[int] = set()  # places with what `pieces` does not have

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

    def land(self, numbers: int, dtype: torch.dtype, device: str) -> int:
        """Let a layer's part of an adapter come by `pieces`; return the bytes that this takes."""
        return self._landing.grow(numbers, dtype, device)

    def take(self, nbytes: int, facts: DeviceFacts) -> None:
        """See `DeviceRoom.take`."""
        self.device.take(nbytes, facts)

    def own(self, factors: Mapping[str, Factors]) -> dict[str, Factors]:
        """Return the part of an adapter that belongs to this stage's layers.

        Args:
            factors: By the names of the matrices that the adapter changes.

        Raises:
            CheckpointError: The model lacks a matrix of the adapter, or its shape does not fit a
                linear layer.
        """
        found = {}
        names = MatrixNames(self.weights, {*self.layers, *self.changes})
        for matrix, pair in self._unstacked(factors, names):
            end = matrix.rpartition(".")[2]
            if self.limits.targets and end not in self.limits.targets:
                raise CheckpointError(
                    f"the adapter changes {matrix}, and --lora-target-modules leaves {end} out; "
                    "name it there"
                )
            if matrix in self.layers:
                layer, index = self.layers[matrix]
                layer.check(matrix, index, pair, self.limits.max_rank)
                found[matrix] = pair
            elif matrix in self.changes:  # experts of other ranks, of which all hear
                found[matrix] = pair
            elif matrix not in self.shared and not self.weights.is_elsewhere(f"{matrix}.weight"):
                raise CheckpointError(
                    f"the adapter changes {matrix}, which {names.why_not(matrix)}; train it "
                    "without (target_modules of PEFT), or merge it into the model"
                )
        return found

    def _unstacked(
        self, factors: Mapping[str, Factors], names: MatrixNames
    ) -> Iterator[tuple[str, Factors]]:
        """Go through matrices one by one, by the names of layers; those of all experts come as the
        matrices of each."""
        for matrix, pair in factors.items():
            module = matrix.replace(".base_layer", "")  # one for each tensor but the first
            stack = self.stacks.get(module) if pair.experts > 1 else None
            if stack is not None:
                yield from stack.split(module, pair).items()
                continue
            yield from names.placed(matrix, pair)

    def check_room(self, name: str, factors: Mapping[str, Factors]) -> int:
        """Return the bytes of host memory that an adapter takes here.

        Args:
            name: Of the adapter.
            factors: From `own`.

        Raises:
            MemoryLimitError: All adapters would take more than they may.
        """
        found = [(*self.layers[m], pair) for m, pair in factors.items() if m in self.layers]
        nbytes = sum(layer.host_bytes(index, pair) for layer, index, pair in found)
        self._room.check(name, nbytes)
        return nbytes

    def load(self, name: str, factors: Mapping[str, Factors]) -> None:
        """Keep an adapter in host memory, in place of one of the same name.

        Args:
            name: Of the adapter.
            factors: From `own`.

        Raises:
            MemoryLimitError: As `check_room`, or the device has too little.
        """
        self.device.write()
        nbytes = self.check_room(name, factors)
        found = {self.changes.get(matrix, Changes.LINEAR) for matrix in factors}
        if Changes.EXPERTS in found:
            self._open_mixtures()
        stored, pieces = {}, list[Piece]()
        for matrix, pair in factors.items():
            if matrix not in self.layers:
                continue
            layer, index = self.layers[matrix]
            part = layer.own_part(index, pair)
            placed = layer.pieces(index, part)
            pieces += placed
            if not placed or part.magnitude is not None:
                stored[matrix] = part
        gains = self._measure(stored)
        ranks = {matrix: len(pair.a) for matrix, pair in factors.items()}
        self._landing.keep(name, tuple(ranks.items()), pieces)
        self._forget(name)
        self.ranks.keep(name, ranks)
        self._changes[name] = Changes.APART if gains else max(found, default=Changes.LINEAR)
        self._stored[name] = stored
        self._room.book(name, nbytes)
        if gains:
            self._gains[name] = gains

    def _open_mixtures(self) -> None:
        """Take memory for adapters of experts, in all mixtures or in none.

        Raises:
            MemoryLimitError: The device has less.
        """
        try:
            for mixture in self.mixtures:
                mixture.open()
        except BaseException:
            for mixture in self.mixtures:
                mixture.shut()
            raise

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
        self._landing.drop(name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._stored.pop(name, None)
        self.ranks.drop(name)
        self._room.drop(name)
        self._gains.pop(name, None)
        self._changes.pop(name, None)
        self._places.pop(name, None)

    def begin(
        self,
        names: Sequence[str | None],
        counts: Sequence[int],
        sample_at: npt.NDArray[np.int64],
        ahead: Sequence[str] = (),
    ) -> Changes:
        """Bring a step's adapters onto the device; tell what they change.

        Args:
            names: Of each request's adapter; at most `max_adapters - ahead` different ones, of
                `AdapterLimits`.
            counts: Tokens of each request.
            sample_at: [s]: the tokens that go on behind the last mixer.
            ahead: Adapters of later steps, the next ones first. Few of them come to the device
                beside the step.
        """
        self.uses = {}
        for name, place in self._landing.arrive(self._places):
            self._put_rest(place, name)
        ahead = ahead[: self.limits.ahead]
        wanted = dict.fromkeys(name for name in names if name is not None)
        kept = {*wanted, *ahead}
        for name in wanted:
            self._place_of(name, kept)
        self._look_ahead(ahead, kept)
        if not wanted:
            return Changes.NOTHING
        of_request = [-1 if name is None else self._places[name] for name in names]
        places = np.repeat(np.array(of_request, np.int32), counts)
        changes = max(self._changes[name] for name in wanted)
        parts = [places] if len(sample_at) == len(places) else [places, places[sample_at]]
        for some, send in zip(parts, self._senders, strict=False):
            self.uses[len(some)] = Use(send(some), torch.from_numpy(some), changes)
        return changes

    def one(self, name: str | None, count: int, device: str) -> None:
        """Let `count` tokens of one request of the step be all that there are; the uses before
        stay valid."""
        places = torch.full((count,), -1 if name is None else self._places[name], dtype=torch.int32)
        changes = Changes.NOTHING if name is None else self._changes[name]
        self.uses = {}
        if name is not None:
            self.uses[count] = Use(
                tokens_of(places, self.limits.max_adapters, device), places, changes
            )

    def reserve(
        self,
        num_tokens: int,
        stages: tuple[Stage, Stage],
        landing: tuple[str, TransferOp] | None = None,
    ) -> None:
        """Take memory at fixed addresses for recorded steps of up to `num_tokens` tokens, and for
        an adapter on its way to a device.

        Args:
            num_tokens: Of the largest recorded step.
            stages: Send which adapters all tokens have, and those that sample.
            landing: The device, and what copies to it; None for the host.
        """
        if landing is not None:
            self._landing.open(*landing)
        whole, sampling = stages
        count = self.limits.max_adapters
        self._senders = TokenPlaces(count, num_tokens, whole), TokenPlaces(count, 0, sampling)

    def clear(self) -> None:
        """Let no token have an adapter, in the step and in what `pad` gives next."""
        self.uses = {}
        self._senders[0].clear()

    def pad(self, size: int, changes: Changes) -> None:
        """Let a recording of `size` tokens read the adapter of each token of the present step.

        Tokens behind those of the step have no adapter.

        Args:
            size: Of the recording.
            changes: What the recording lets adapters change.
        """
        tokens = self._senders[0].recorded(size)
        self.uses[size] = Use(tokens, torch.empty(0, dtype=torch.int32), changes)

    def recordable(self) -> tuple[Changes, ...]:
        """Return what adapters that are loaded may change of a step that is recorded."""
        experts = all(mixture.is_open for mixture in self.mixtures) and bool(self.mixtures)
        latents = Changes.LATENTS in self._changes.values()
        found = {Changes.LATENTS: latents, Changes.EXPERTS: experts}
        return (Changes.NOTHING, Changes.LINEAR, *(kind for kind, held in found.items() if held))

    def _place_of(self, name: str, kept: Collection[str]) -> None:
        """Bring an adapter into a place on the device, and record its use."""
        if name in self._places:
            self._places.move_to_end(name)
            return
        place = self._free(kept)
        assert place is not None, "there are places for those that are kept"
        self._landing.fill(place, name)
        self._put_rest(place, name)
        self._places[name] = place

    def _free(self, kept: Collection[str]) -> int | None:
        """Return a place that nobody has, or that of the adapter unused longest; None where all
        are to be kept."""
        if len(self._places) < self.limits.max_adapters:
            taken = set(self._places.values())
            return next(p for p in range(self.limits.max_adapters) if p not in taken)
        oldest = next((other for other in self._places if other not in kept), None)
        return None if oldest is None else self._places.pop(oldest)

    def _put_rest(self, place: int, name: str) -> None:
        """Write what of an adapter does not come by `pieces`."""
        self.ranks.put(place, name)
        stored, gains = self._stored[name], self._gains.get(name, {})
        if stored or gains or place in self._rest:
            for matrix, (layer, index) in self.layers.items():
                layer.put(place, index, stored.get(matrix), gains.get(matrix))
        (self._rest.add if stored or gains else self._rest.discard)(place)

    def _look_ahead(self, ahead: Sequence[str], kept: Collection[str]) -> None:
        """Start to bring the next adapters that later steps need and the device lacks."""
        absent = (name for name in ahead if name not in self._places)
        coming: list[tuple[str, int]] = []
        for name in islice(filter(self._landing.can_fetch, absent), LANDINGS):
            place = self._free(kept)
            if place is not None:
                self._places[name] = place
                coming.append((name, place))
        if coming:
            self._landing.fetch(coming)
