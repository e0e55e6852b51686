"""What a platform package supplies, and what it says about the machine it found.

A platform answers few questions: is the hardware here, what is it, how much memory may be used,
which candidates does it offer. It supplies no runner and no model. Core reads only the fields of
`DeviceFacts` that are not features; feature strings are for the platform's own candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hotshoe.errors import ConfigError

if TYPE_CHECKING:
    from hotshoe.config import EngineConfig
    from hotshoe.executor.worker import Worker
    from hotshoe.slots import Candidate


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device as found at start-up, frozen; plain constants from then on.

    `device` is the string that tensors are placed with, `memory_bytes` what the device (or the
    control group) has in all, `compute_units` cores or multiprocessors usable by one worker.
    """

    platform: str
    device: str
    name: str
    arch: str
    memory_bytes: int
    compute_units: int
    features: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _check_types(self, str, "platform", "device", "name", "arch")
        _check_types(self, int, "memory_bytes", "compute_units")


def _check_types(value: object, kind: type, *names: str) -> None:
    """Refuse a value of a platform whose fields are something else than they have to be."""
    for name in names:
        found = getattr(value, name)
        if not isinstance(found, kind):
            whose = type(value).__name__
            raise TypeError(f"{whose}.{name} is of type {kind.__name__}, not {found!r}")


@dataclass(frozen=True, slots=True)
class Available:
    """The hardware is here. Automatic choice takes the highest score, then the name."""

    score: int

    def __post_init__(self) -> None:
        _check_types(self, int, "score")


@dataclass(frozen=True, slots=True)
class Absent:
    """The hardware is not here; an ordinary finding."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The hardware seems to be here, but something it needs fails. Never treated as absent.

    Attributes:
        cause: What fails, and the remedy.
        score: The score that it would have. Automatic choice passes over it only for a platform
            with a higher one; None, it is never passed over.
    """

    cause: str
    score: int | None = None


Detection = Available | Absent | Broken


@dataclass(frozen=True, slots=True)
class Change:
    """One configuration field that resolution set, and why."""

    field: str
    value: object
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes that the KV cache may take on the device, and how that was found.

    `free_bytes` are all that are free, if that is known: weights may take no more.
    """

    available_bytes: int
    note: str = ""
    free_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_types(self, int, "available_bytes")
        if self.free_bytes is not None:
            _check_types(self, int, "free_bytes")

    def after(self, weight_bytes: int) -> MemoryBudget:
        """Return what it would be if weights took so much: the cache's share of what is left."""
        free = self.available_bytes if self.free_bytes is None else self.free_bytes
        left = max(free - weight_bytes, 0)
        return MemoryBudget(self.available_bytes * left // max(free, 1), self.note, left)


@dataclass(frozen=True, slots=True)
class Proof:
    """A way to prove a target on a machine that does not have it.

    Attributes:
        kind: "simulated": its code runs, on something else; "cross-compiled": its kernels are
            compiled for it, and not run.
        command: What to run in the project's root.
        modules, executables: What the command needs; a dotted module is looked for without
            importing it.
    """

    kind: str
    command: str
    modules: tuple[str, ...] = ()
    executables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of device that a platform is written for, here or not.

    Attributes:
        name: As people ask for it, such as a part's name.
        facts: What `Platform.facts` says on such a device, recorded from one or from its manual.
        requires: Features by which a found device of the same architecture is known to be this.
        options: Flags of `hotshoe` commands that choose it on a device that is more.
        proofs: How it can be proved elsewhere.
    """

    name: str
    facts: DeviceFacts
    requires: frozenset[str] = frozenset()
    options: str = ""
    proofs: tuple[Proof, ...] = ()


class Platform(ABC):
    """The contract of a platform package. Instances hold no device state before `activate`.

    Attributes:
        name: As its plugin and its users name it.
        asynchronous: True when `Worker.execute` returns before the device has finished; enables
            overlap.
        measures_memory: True when `memory_budget` is to be asked after a step of the largest size
            has run.
        cluster_resources: Resources that one rank asks a cluster's scheduler for, by its names,
            such as {"GPU": 1.0}. The scheduler hides devices from processes that do not ask. Each
            rank asks for one CPU as well.
        targets: The devices that it is written for, as data.
    """

    name: str
    asynchronous: bool = False
    measures_memory: bool = False
    cluster_resources: Mapping[str, float] = MappingProxyType({})
    targets: tuple[Target, ...] = ()

    @abstractmethod
    def probe(self) -> Detection:
        """Say whether the hardware is usable, without initializing the device."""

    @abstractmethod
    def facts(self) -> DeviceFacts:
        """Describe the device, without initializing it. Called only when `Available`."""

    def candidates(self) -> Sequence[Candidate]:
        """Offer implementations of slots. The default offers none: references serve."""
        return ()

    def resolve(self, config: EngineConfig) -> Sequence[Change]:
        """Fill fields that are None with this platform's choice; refuse what it cannot do.

        The default fills none, and knows no option.

        Raises:
            ConfigError: A set field is impossible here, or an option of `platform_options` unknown.
        """
        for name in config.platform_options:
            raise ConfigError(f"platform {self.name} has no option {name!r}; it has none at all")
        return ()

    def take_part(self, rank: int, size: int) -> None:
        """Be, from now on, the platform of one of `size` workers that share what is here.

        Called after `resolve`, before `facts` and `activate`, and only where there are several:
        in each worker's own process, and, to find out whether that can be, with rank 0 before.

        Raises:
            ConfigError: There are not as many devices, or this platform knows only one.
        """
        raise ConfigError(
            f"platform {self.name} runs on one device; leave tensor_parallel_size and "
            "pipeline_parallel_size at 1"
        )

    def dtype_for(self, checkpoint_dtype: str) -> tuple[str, str]:
        """Choose the type to compute a checkpoint in, where the user left it open.

        Returns:
            The type's name, and the reason that the user reads.
        """
        return checkpoint_dtype, "the checkpoint's type"

    def activate(self, config: EngineConfig) -> Mapping[str, object]:
        """Take the device for this process: threads, binding, streams. Returns what to report."""
        return {}

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        """Return what is still free for the KV cache. Called after the weights are loaded, and
        before that, for `free_bytes`, unless it is to be asked after a step has run."""
        return MemoryBudget(self.facts().memory_bytes // 2, "half of the device's memory")

    def release_memory(self) -> None:
        """Return to other programs what was freed here and is kept for the next step.

        Called when an engine sleeps or was closed, perhaps before it was ever activated; another
        may be at work in this process.
        """

    def create_worker(self, config: EngineConfig) -> Worker | None:
        """Replace the core's worker entirely, for devices without PyTorch. None: use core's."""
        return None


@runtime_checkable
class Rehearsing(Protocol):
    """A platform whose kernels are compiled when they are first called, one after the other, unless
    it learns of many at once. No `Platform` has to be one."""

    def rehearsal(self) -> AbstractContextManager[Callable[[], bool]]:
        """Open a time in which steps run for what they call alone; gives what tells whether a
        kernel that was called so far had to be compiled.

        A kernel that is not compiled yet may compute nothing, and leave zeros. At the end of the
        time all kernels that were called have been compiled. One that cannot be compiled fails
        when it is called next. Only for a platform that was activated, in the calling thread.
        """
        ...


@runtime_checkable
class Preparing(Protocol):
    """A platform that can do before a process is forked what each start would do. No `Platform` has
    to be one."""

    def prepare(self) -> None:
        """Import and compute what every engine needs, with no device taken and no thread left.

        Called after `resolve`, in a process that never takes a device.
        """
        ...


@dataclass(frozen=True, slots=True)
class PlatformStatus:
    """A platform's detection as `hotshoe platforms` prints it."""

    name: str
    distribution: str
    detection: Detection
    facts: DeviceFacts | None = field(default=None)
