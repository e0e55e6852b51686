"""The device: tensors of type "sim", a memory that can run out, and a queue that runs later.

A tensor here has no data that the host could read: it names a cell, which the queue's thread fills
when its turn comes. Shapes are known at once, from the same operation on "meta" tensors; asking for
a value waits. An operation on tensors of this and of another device is an error, a single number
aside. Copies to and from the host are the only bridge.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "sim"
aten = torch.ops.aten


class Memory:
    """Counts bytes, and refuses more than there are."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0

    def take(self, nbytes: int) -> Allocation:
        """Take memory until the returned object is dropped.

        Raises:
            RuntimeError: There is not enough.
        """
        if self.used_bytes + nbytes > self.capacity_bytes:
            free = self.capacity_bytes - self.used_bytes
            raise RuntimeError(f"sim: out of memory: {nbytes} bytes asked for, {free} are free")
        self.used_bytes += nbytes
        allocation = Allocation()
        weakref.finalize(allocation, self._give_back, nbytes)
        return allocation

    def _give_back(self, nbytes: int) -> None:
        self.used_bytes -= nbytes


class Allocation:
    """Device memory in use; views share one.

    Work that is still queued needs none: what comes later in the queue may have its memory.
    """


class Queue:
    """Runs work in order on a thread of its own. An error surfaces where somebody waits.

    What a host thread submits while it records is kept for later instead.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._recordings = threading.local()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        #: Cleared to hold the device, so that tests see what does not wait.
        self.running = threading.Event()
        self.running.set()

    @property
    def started(self) -> bool:
        return self._thread is not None

    def submit(self, work: Callable[[], object]) -> None:
        """Append work."""
        recording: list[Callable[[], object]] | None = getattr(self._recordings, "work", None)
        if recording is not None:
            recording.append(work)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="sim", daemon=True)
            self._thread.start()
        self._work.put(work)

    def wait(self) -> None:
        """Return when everything submitted before has been done.

        Raises:
            RuntimeError: Some of it went wrong, or this thread records.
        """
        if getattr(self._recordings, "work", None) is not None:
            raise RuntimeError("sim: work that is being recorded cannot be waited for")
        done = threading.Event()
        self.submit(done.set)
        done.wait()
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError(f"sim: {error}") from error

    @contextmanager
    def recording(self) -> Iterator[list[Callable[[], object]]]:
        """Collect the work that this thread submits, running none of it."""
        self._recordings.work = work = []
        try:
            yield work
        finally:
            self._recordings.work = None

    @torch.inference_mode()
    def _loop(self) -> None:
        while True:
            work = self._work.get()
            self.running.wait()
            try:
                work()
            except Exception as error:  # kept for whoever waits, as real devices do
                self._error = self._error or error
            del work  # what it held is free now, not when the next work comes


MEMORY = Memory(1 << 30)
QUEUE = Queue()


@dataclass(slots=True)
class Cell:
    """Where the queue leaves a tensor."""

    value: Tensor | None = None

    def read(self) -> Tensor:
        assert self.value is not None, "an earlier operation failed"
        return self.value


class SimTensor(Tensor):
    """A tensor on the device. `meta` has its shape and strides, `cell` will have its content."""

    meta: Tensor
    cell: Cell
    allocation: Allocation

    @staticmethod
    def __new__(cls, meta: Tensor, cell: Cell, allocation: Allocation) -> Self:
        # An inference tensor could not be a view of a tensor that was made outside that mode.
        with torch.inference_mode(False):
            made = Tensor._make_wrapper_subclass(
                cls,
                meta.shape,
                strides=meta.stride(),
                storage_offset=meta.storage_offset(),
                dtype=meta.dtype,
                device=torch.device(NAME, 0),
            )
        made.meta, made.cell, made.allocation = meta, cell, allocation
        return made

    def __repr__(self) -> str:
        return f"{host(self)!r} on {NAME}"

    def data_ptr(self) -> int:
        """Refuse: the host cannot follow an address of the device."""
        raise RuntimeError(f"{NAME}: the host cannot read the device's memory")

    def tolist(self) -> Any:
        """Return the values; PyTorch's own refuses tensors of other classes."""
        return host(self).tolist()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            return func.decompose(*args, **kwargs)  # inference mode hands these over whole
        if func is aten.copy_.default:
            return copy(*args, **kwargs)
        target = kwargs.get("device")
        if func is aten._to_copy.default and target is not None and target.type != NAME:
            return host(args[0]).to(target, dtype=kwargs.get("dtype"), copy=True)
        return launch(func, args, kwargs)


def launch(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Queue an operation and return its results, whose content comes later."""
    leaves, tree = tree_flatten((tuple(args), kwargs))
    _check_devices(func, leaves)
    by_meta = {id(leaf.meta): leaf for leaf in leaves if isinstance(leaf, SimTensor)}

    def call(leaves: Sequence[Any]) -> Any:
        some_args, some_kwargs = tree_unflatten(leaves, tree)
        return func(*some_args, **some_kwargs)

    queued = [_queued(leaf) for leaf in leaves]

    def run() -> Any:
        return call([leaf.read() if isinstance(leaf, Cell) else leaf for leaf in queued])

    try:
        metas = call([_to_meta(leaf) for leaf in leaves])
    except Exception:  # what it gives depends on values, or it is wrong: then the call says so
        return _launch_and_wait(run)
    flat, shape = tree_flatten(metas)
    if not all(isinstance(meta, Tensor) for meta in flat):
        return _launch_and_wait(run)
    # A result that is an input was written in place.
    results = [
        by_meta[id(meta)] if id(meta) in by_meta else _result(meta, by_meta.values())
        for meta in flat
    ]

    places = [(result.cell, result.meta) for result in results]

    def work() -> None:
        values, _ = tree_flatten(run())
        for (cell, meta), value in zip(places, values, strict=True):
            cell.value = _as_laid_out(value, meta)

    QUEUE.submit(work)
    return tree_unflatten(results, shape)


def _launch_and_wait(run: Callable[[], Any]) -> Any:
    """Run an operation whose results are known only afterwards, such as `item`."""
    found: list[Any] = []
    QUEUE.wait()
    QUEUE.submit(lambda: found.append(run()))
    QUEUE.wait()
    return tree_map(lambda x: adopt(x) if isinstance(x, Tensor) else x, found[0])


def adopt(value: Tensor) -> SimTensor:
    """Make a tensor of the device from content that the queue has just made."""
    meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return SimTensor(meta, Cell(value), MEMORY.take(value.nbytes))


def empty(shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Tensor:
    """Take memory without filling it."""
    dtype = dtype or torch.get_default_dtype()
    if strides is None:
        meta = torch.empty(shape, dtype=dtype, device="meta")
    else:
        meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    result = SimTensor(meta, Cell(), MEMORY.take(meta.untyped_storage().nbytes()))
    cell, strides = result.cell, meta.stride()

    def work() -> None:
        cell.value = torch.empty_strided(shape, strides, dtype=dtype)

    QUEUE.submit(work)
    return result


def copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy within the device, or over the bridge; only then may a plain copy come from the host.

    A copy that does not block reads the host's memory later, whoever may have written there.
    """
    if not isinstance(target, SimTensor):
        return target.copy_(host(source))
    if isinstance(source, SimTensor):
        return launch(aten.copy_.default, (target, source), {})
    source.expand(target.shape)  # refuses now what could not be copied later
    cell = target.cell
    QUEUE.submit(lambda: cell.read().copy_(source))
    if not non_blocking:
        QUEUE.wait()
    return target


def host(tensor: Tensor) -> Tensor:
    """Return a copy in the host's memory, when the device is done."""
    assert isinstance(tensor, SimTensor)
    QUEUE.wait()
    return tensor.cell.read().clone()


def _result(meta: Tensor, inputs: Any) -> SimTensor:
    """Make a result: a view of an input shares its memory, anything else takes its own."""
    shared = (x.allocation for x in inputs if torch._C._is_alias_of(x.meta, meta))
    allocation = next(shared, None) or MEMORY.take(meta.nbytes)
    return SimTensor(meta, Cell(), allocation)


def _as_laid_out(value: Tensor, meta: Tensor) -> Tensor:
    """Give a result the strides that were announced for it."""
    assert value.shape == meta.shape, f"{list(value.shape)} instead of {list(meta.shape)}"
    if value.stride() == meta.stride() or value.numel() == 0:
        return value
    laid_out = torch.empty_strided(meta.shape, meta.stride(), dtype=value.dtype)
    return laid_out.copy_(value)


def _check_devices(func: Any, leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        if isinstance(leaf, Tensor) and not isinstance(leaf, SimTensor) and leaf.dim():
            raise RuntimeError(
                f"{func}: expected all tensors on {NAME}, but one of shape {list(leaf.shape)} "
                f"is on {leaf.device}"
            )


def _to_meta(leaf: Any) -> Any:
    if isinstance(leaf, SimTensor):
        return leaf.meta
    return torch.device("meta") if isinstance(leaf, torch.device) else leaf


def _queued(leaf: Any) -> Any:
    """Return what queued work keeps of an argument."""
    if isinstance(leaf, SimTensor):
        return leaf.cell
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


class _Module:
    """What `torch.get_device_module("sim")` returns."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return QUEUE.started

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def synchronize(self) -> None:
        QUEUE.wait()

    def memory_allocated(self) -> int:
        return MEMORY.used_bytes

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass


_setup_privateuseone_for_python_backend(NAME, _Module())
_LIBRARY = torch.library.Library("aten", "IMPL")


def _empty_memory_format(size: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    return empty(size, dtype)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    return empty(size, dtype, stride)


def _arange(*limits: Any, dtype: Any = None, **options: Any) -> Tensor:
    """Make a range in one operation: PyTorch's own resizes a result, which a wrapper cannot."""
    made: Tensor = launch(torch.arange, limits, {"dtype": dtype, "device": torch.device(NAME)})
    return made


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    return copy(target, source, non_blocking)


_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
_LIBRARY.impl("empty.memory_format", _empty_memory_format, "PrivateUse1")
for _name in ("arange", "arange.start", "arange.start_step"):
    _LIBRARY.impl(_name, _arange, "PrivateUse1")
_LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
