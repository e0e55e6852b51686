"""Weights that stay in host memory, and come to the device one layer ahead of their use.

Operations of one kind in different layers (their names differ in a number alone) form a ring. Two
of them keep memory on the device, and compute for all: while one multiplies, the weights of the
next layer are copied into the other. Nothing here knows a device: slot `transfer` copies, and says
when a copy has to be waited for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, EngineError, MemoryLimitError
from hotshoe.layers.host_memory import HostBlocks
from hotshoe.layers.weights import HOST
from hotshoe.slots import AdaptableMoeOp, Selector, TransferOp
from hotshoe.slots.contract import takes_quantized

GIB = 2**30
#: Operations of a ring that have memory on the device.
PLACES = 2
#: Copies that tell how fast they are.
MEASURED_BYTES = 2**28

#: Source in host memory and target on the device.
Copy: TypeAlias = tuple[Tensor, Tensor]


def offload_of(config: EngineConfig, device: str) -> Offload | None:
    """Return what keeps weights in host memory; None where nothing was asked for.

    Raises:
        ConfigError: The device computes in host memory, or weights move otherwise.
    """
    if not config.offloads:
        return None
    name = "offload_weights" if config.offload_weights is not None else "cpu_offload_gb"
    if device.partition(":")[0] == HOST.type:
        raise ConfigError(
            f"{name}: device {device} computes in host memory, where weights lie anyway; "
            "leave the option out"
        )
    if config.enable_eplb:
        raise ConfigError(
            f"{name} and enable_eplb exclude each other: experts that move between devices have "
            "no place in host memory; leave one of them out"
        )
    pattern = config.offload_weights
    chosen = None if pattern is None else re.compile(pattern)
    return Offload(name, chosen, int(config.cpu_offload_gb * GIB))


class Offload:
    """Decides which operations share memory on the device, and keeps their weights.

    Args:
        option: The one that asked for it.
        pattern: Operations with a tensor of such a name; None for as many layers as needed.
        wanted_bytes: Device memory to be saved; without a pattern.

    Attributes:
        transfer: Copies.
    """

    transfer: TransferOp

    def __init__(self, option: str, pattern: re.Pattern[str] | None, wanted_bytes: int) -> None:
        self._option, self._pattern, self._wanted_bytes = option, pattern, wanted_bytes
        self._kinds: dict[tuple[str, Any, str], list[Streamed]] = {}
        self.rings: list[Ring] = []
        self._blocks: HostBlocks | None = None

    def take(
        self, selector: Selector, slot: str, spec: Any, names: Iterable[str], operation: Any
    ) -> Any:
        """Return what stands for an operation in its layer: itself where it is not asked for.

        Args:
            selector: Has built it.
            slot, spec: The question whose answer it is.
            names: Of its checkpoint tensors.
            operation: None for a block that is composed.
        """
        names = list(names)
        if operation is None or not (self._pattern is None or any(map(self._matches, names))):
            return operation
        layer = re.search(r"\d+", names[0])
        if layer is None:  # outside of layers, and in no step more than once
            return operation
        nbytes = selector.held_bytes(slot, spec, selector.slots[slot].matrices(spec))
        kind_of = StreamedExperts if isinstance(operation, AdaptableMoeOp) else Streamed
        streamed = kind_of(operation, int(layer[0]), nbytes)
        kind = (slot, spec, re.sub(r"\d+", "*", names[0]))
        self._kinds.setdefault(kind, []).append(streamed)
        return streamed

    def _matches(self, name: str) -> bool:
        return self._pattern is not None and self._pattern.search(name) is not None

    def plan(self, alone: bool) -> None:
        """Form rings, once all layers are built and before weights are loaded.

        Args:
            alone: There are no other stages, whose layers may be meant; otherwise they agree later
                whether there is nothing to save (`check`).

        Raises:
            ConfigError: Nothing would be saved, or less than asked for.
        """
        layers = sorted({one.layer for kind in self._kinds.values() for one in kind})
        chosen: Sequence[int] = layers
        if self._pattern is None:
            chosen = self._enough(layers)
        for kind in self._kinds.values():
            units = [one for one in kind if one.layer in chosen]
            if len(units) > PLACES:
                self.rings.append(Ring(self, units))
        if alone:
            self.check(not self.rings)

    def check(self, saves_nothing: bool) -> None:
        """Refuse what saves nothing on any device.

        Raises:
            ConfigError: So it is.
        """
        if saves_nothing:
            raise ConfigError(
                f"{self._option}: no three layers have weights of one kind that it means, so "
                "nothing would be saved; names are like model.layers.0.mlp.down_proj.weight, and "
                "`hotshoe explain MODEL --weights` lists them"
            )

    def _enough(self, layers: Sequence[int]) -> Sequence[int]:
        """Return the fewest layers, spread evenly, that save what is wanted."""
        most = 0
        spread = list(layers)
        for count in range(1, len(layers) + 1):
            spread = [layers[i * len(layers) // count] for i in range(count)]
            kinds = ([u for u in kind if u.layer in spread] for kind in self._kinds.values())
            most = sum(_saved(units) for units in kinds)
            if most >= self._wanted_bytes:
                return spread
        raise ConfigError(
            f"cpu_offload_gb {self._wanted_bytes / GIB:g}: at most {most / GIB:.3f} GiB of this "
            "model's weights on each device can stay in host memory; lower it"
        )

    @property
    def saved_bytes(self) -> int:
        """Device memory that weights do not take."""
        return sum(_saved(ring.units) for ring in self.rings)

    @property
    def step_bytes(self) -> int:
        """Host memory that weights take, and bytes that a step copies to the device."""
        return sum(unit.estimate for ring in self.rings for unit in ring.units)

    def note(self) -> str:
        """Say before anything is loaded what will be done."""
        count = sum(len(ring.units) for ring in self.rings)
        return (
            f"of {count} operations ({self._option}), which save {self.saved_bytes / GIB:.3f} GiB "
            "on the device; each step copies all of them there, and start-up measures how fast"
        )

    def begin(self, transfer: TransferOp) -> None:
        """Copy by an operation from now on.

        Raises:
            ConfigError: An operation does not tell its state, so that its weights cannot be had.
        """
        self.transfer = transfer
        for (slot, _, name), units in self._kinds.items():
            ring = units[-1].ring
            if ring is not None and not hasattr(ring.operations[0], "state"):
                raise ConfigError(
                    f"{self._option}: the candidate of slot {slot} for {name} does not tell its "
                    "state, so that its weights cannot be copied; leave these out, or choose "
                    f"another one with --kernel {slot}=NAME"
                )

    def settle(self) -> None:
        """Keep, in host memory, all that was loaded since."""
        for ring in self.rings:
            ring.settle()

    def host_like(self, tensor: Tensor) -> Tensor:
        """Take host memory for a copy of a tensor, as it lies.

        Raises:
            MemoryLimitError: The host does not grant it.
        """
        if self._blocks is None:
            self._blocks = HostBlocks(self.transfer.host_buffer, self.step_bytes)
        try:
            own = self._blocks.take(tensor.nbytes)
        except RuntimeError as error:
            raise MemoryLimitError(
                f"{self._option}: the host grants no {self.step_bytes / GIB:.1f} GiB of "
                f"memory that the device reads ({error}); mean fewer layers"
            ) from error
        laid_out = torch.empty_like(
            torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
        )  # strides without gaps stay
        flat = own.view(tensor.dtype)
        return flat.as_strided(tensor.shape, laid_out.stride(), flat.storage_offset())

    def report(self) -> dict[str, str]:
        """Keep what was loaded, and say what was done and what it costs, as measured."""
        if not self.rings:
            return {"offloaded weights": "none of this stage"}
        self.settle()
        units = [unit for ring in self.rings for unit in ring.units]
        held = sum(unit.host_bytes for unit in units)
        copies, size = list[Copy](), 0
        for unit in units:
            copies += unit.copies()
            size += unit.host_bytes
            if size >= MEASURED_BYTES:
                break
        begin = time.perf_counter()
        self.transfer.fetch(copies)()
        self.transfer.download([])()
        rate = size / max(time.perf_counter() - begin, 1e-9)
        said = (
            f"{held / GIB:.3f} GiB of {len(units)} operations in host memory; each step copies "
            f"them, {held / rate * 1e3:.1f} ms at {rate / 1e9:.1f} GB/s"
        )
        return {"offloaded weights": said}


class Streamed:
    """Stands for an operation, whose weights may stay in host memory.

    Args:
        operation: As it was built; a ring has its own.
        layer: Its number.
        estimate: Bytes of its matrices, from their specification.
    """

    def __init__(self, operation: Any, layer: int, estimate: int) -> None:
        self._operation = operation
        self.takes_quantized = takes_quantized(operation)
        self.layer, self.estimate = layer, estimate
        self.ring: Ring | None = None
        self.index = 0
        #: What it keeps, by the names of its state.
        self.host: dict[str, Tensor] = {}

    def join(self, ring: Ring, index: int) -> Any:
        """Take a place in a ring, and hand over the operation."""
        self.ring, self.index = ring, index
        operation, self._operation = self._operation, None
        return operation

    def copies(self) -> list[Copy]:
        """Return what brings its weights to the device."""
        return [] if self.ring is None else self.ring.pairs(self)

    @property
    def host_bytes(self) -> int:
        """What it takes of host memory."""
        return sum(tensor.nbytes for tensor in self.host.values())

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ready()(*arguments, **named)

    def _ready(self) -> Any:
        """Return the operation, once its weights are there."""
        return self._operation if self.ring is None else self.ring.ready(self.index)

    def load(self, *arguments: Any) -> None:
        """See `hotshoe.slots.LinearOp`."""
        self._writable().load(*arguments)

    def load_gate_up(self, *arguments: Any) -> None:
        """See `hotshoe.slots.GatedMlpOp` and `hotshoe.slots.MoeOp`."""
        self._writable().load_gate_up(*arguments)

    def load_down(self, *arguments: Any) -> None:
        """See `hotshoe.slots.GatedMlpOp` and `hotshoe.slots.MoeOp`."""
        self._writable().load_down(*arguments)

    def _writable(self) -> Any:
        return self._operation if self.ring is None else self.ring.writable(self.index)

    @property
    def state(self) -> Callable[[], Mapping[str, Tensor]] | None:
        """What tells what is held; None where the operation does not."""
        inner = self._operation if self.ring is None else self.ring.operations[0]
        return None if getattr(inner, "state", None) is None else self._state

    def _state(self) -> Mapping[str, Tensor]:
        """Return what lies in host memory; the first ones add the memory on the device."""
        if self.ring is None:
            found: Mapping[str, Tensor] = self._operation.state()
            return found
        places = self.ring.operations[self.index : PLACES]
        buffers = places[0].state() if places else {}
        return self.host | {f"on the device: {name}": t for name, t in buffers.items()}

    def nbytes(self) -> int:
        """Return the bytes on the device."""
        if self.ring is None:
            return int(self._operation.nbytes())
        return sum(int(one.nbytes()) for one in self.ring.operations[self.index : self.index + 1])


class StreamedExperts(Streamed):
    """Stands for an `AdaptableMoeOp`."""

    @property
    def recordable(self) -> bool:
        """See `hotshoe.slots.RecordableMoeOp`."""
        return getattr(self._operation, "recordable", False)

    def adapted(self, *arguments: Any) -> Any:
        """See `hotshoe.slots.AdaptableMoeOp`."""
        return self._ready().adapted(*arguments)


class Ring:
    """Operations of one kind, in the order of their layers.

    A step begins with the first, which is always fetched: what a step before left on the device
    is not known, as it may have been recorded, and recordings run without this. Within a step the
    next one's weights are on their way while one computes; another that is called again finds its
    own still there.

    Attributes:
        units: All of them.
        operations: Those with memory on the device.
    """

    def __init__(self, offload: Offload, units: Sequence[Streamed]) -> None:
        self.units = units
        self._offload = offload
        built = [unit.join(self, i) for i, unit in enumerate(units)]
        self.operations = built[:PLACES]
        self._arrived: list[Callable[[], None]] = [_nothing] * PLACES
        self._at = -1
        # While weights are loaded: whose they are on the device, and not yet in host memory.
        self._written: list[int | None] = [None] * PLACES
        self._pairs: list[list[Copy]] = [[] for _ in units]

    def ready(self, index: int) -> Any:
        """Return the operation that computes for a unit, once its weights have arrived."""
        place = index % PLACES
        if index == 0 or index != self._at:
            if index == 0 or index != self._at + 1:
                self._fetch(index)
            if index + 1 < len(self.units):
                self._fetch(index + 1)
            self._at = index
            self._arrived[place]()
        return self.operations[place]

    def _fetch(self, index: int) -> None:
        self._arrived[index % PLACES] = self._offload.transfer.fetch(self._pairs[index])

    def writable(self, index: int) -> Any:
        """Return the operation that takes new values of a unit, with the old ones in it."""
        place = index % PLACES
        if self._written[place] != index:
            self._keep(place)
            for source, target in self.pairs(self.units[index]):
                target.copy_(source)
            self._written[place] = index
        return self.operations[place]

    def settle(self) -> None:
        """Copy to host memory what was loaded."""
        for place in range(PLACES):
            self._keep(place)
        self._at = -1

    def _keep(self, place: int) -> None:
        index, self._written[place] = self._written[place], None
        if index is None:
            return
        unit, state = self.units[index], self.operations[place].state()
        for name, tensor in state.items():
            if name not in unit.host:
                unit.host[name] = self._offload.host_like(tensor)
            if unit.host[name].shape != tensor.shape or unit.host[name].dtype != tensor.dtype:
                raise EngineError(
                    f"{name} of layer {unit.layer} changed its form while it was loaded; leave "
                    "this layer out of offload_weights"
                )
            unit.host[name].copy_(tensor)
        self._pairs[index] = self.pairs(unit)

    def pairs(self, unit: Streamed) -> list[Copy]:
        """Return what has to be copied before a unit computes."""
        if not unit.host:
            return []
        state = self.operations[unit.index % PLACES].state()
        return [(source, state[name]) for name, source in unit.host.items()]


def _nothing() -> None:
    """Wait for nothing."""


def _saved(units: Sequence[Streamed]) -> int:
    return sum(unit.estimate for unit in units[PLACES:])
