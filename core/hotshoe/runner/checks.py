"""Checks what operations return: in one step after building, and in every step if asked.

A wrong shape, a wrong type or None then has the name of its candidate, and does not fail in the
operation of somebody else. While that step runs, checking objects stand where layers hold their
operations; afterwards layers hold the operations again, and no call costs more than before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hotshoe.slots import Result, Selector
from hotshoe.slots.faults import Built, Owner

#: What holds an operation, under which key or index, and the operation.
Place: TypeAlias = tuple[Any, Any, object]


class ResultChecks:
    """Checks operations of one worker.

    Args:
        selector: Has built them.
        always: Checks stay, and look for NaN and infinity too, which waits for the device.
    """

    def __init__(self, selector: Selector, always: bool) -> None:
        self._selector = selector
        self._always = always
        self._first: str | None = None

    @contextmanager
    def over(self, root: object) -> Iterator[None]:
        """Check all that the operations return which an object holds, at any depth.

        Raises:
            EngineError: One returned something else than its slot says.
        """
        places = list(_held(root, self._checkable))
        for holder, key, operation in places:
            holder[key] = _Checked(operation, self._see)
        try:
            yield
        finally:
            if not self._always:
                for holder, key, operation in places:
                    holder[key] = operation

    def remark(self) -> str:
        """Say of the step that ran which operation made the first NaN. For checks that stay."""
        first, self._first = self._first, None
        return first or "no operation returned NaN or infinity"

    def _checkable(self, value: object) -> bool:
        slots = self._selector.slots
        return any(slots[slot].results for (slot, _), _ in self._selector.built(value))

    def _see(self, operation: object, argument: Any, found: object) -> None:
        """Judge what an operation returned; several may have built it, one of them has to fit."""
        built = self._selector.built(operation)
        rows = len(argument[0] if isinstance(argument, tuple) else argument)
        given = list(_flat(found))
        owners = list(dict.fromkeys(owner for owner, _ in built))
        wanted = [self._wanted(one, rows) for one in built]
        if not any(_fits(given, results) for results in wanted):
            did = f"returned {_shown(given)}, not {_asked(wanted[0])}, for {built[0][1]}"
            raise self._selector.blamed(owners, did)
        if self._always and self._first is None and not all(map(_finite, given)):
            self._first = self._suspected(owners)

    def _wanted(self, built: Built, rows: int) -> Sequence[Result]:
        (slot, _), spec = built
        results = self._selector.slots[slot].results
        assert results is not None, "only such operations are checked"
        return results(spec, rows)

    def _suspected(self, owners: Sequence[Owner]) -> str:
        who = self._selector.named(owners)
        return f"the first result with NaN or infinity came from {who}, or from its weights"


def held_bytes(selector: Selector, nbytes: Callable[[], object]) -> int:
    """Return what an operation says that its weight holds.

    Raises:
        EngineError: It says something else than a number of bytes.
    """
    size = nbytes()
    if isinstance(size, int) and size >= 0:
        return size
    owners = [owner for owner, _ in selector.built(getattr(nbytes, "__self__", None))]
    if not owners:
        raise TypeError(f"nbytes() returned {size!r}, not a number of bytes")
    raise selector.blamed(owners, f"says of its weight that nbytes() is {size!r}")


class _Checked:
    """Stands where an operation was, calls it, and shows what it returned."""

    def __init__(self, operation: Any, see: Callable[[object, Any, object], None]) -> None:
        self._operation = operation
        self._see = see

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operation, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set it on the operation, as the scales of a cache; its own two are set once."""
        own = name in ("_operation", "_see")
        object.__setattr__(self if own else self._operation, name, value)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        found = self._operation(*arguments, **named)
        self._see(self._operation, next(iter((*arguments, *named.values()))), found)
        return found


#: Never searched for operations.
_LEAVES = (Tensor, type, ModuleType, Selector, _Checked)


def _held(root: object, wanted: Callable[[object], bool]) -> Iterator[Place]:
    """Yield where objects that are wanted are kept: in attributes, mappings and lists."""
    seen, waiting = set[int](), [root]
    while waiting:
        holder = waiting.pop()
        if id(holder) in seen or isinstance(holder, _LEAVES):
            continue
        seen.add(id(holder))
        if isinstance(holder, (dict, list)):
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            for key in keys:
                if wanted(holder[key]):
                    yield holder, key, holder[key]
                else:
                    waiting.append(holder[key])
        elif isinstance(holder, tuple):
            waiting += holder
        elif isinstance(holder, FunctionType):
            waiting += _closed_over(holder)
        waiting.append(getattr(holder, "__dict__", None))


def _closed_over(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty yet
            yield cell.cell_contents


def _flat(found: object) -> Iterator[object]:
    """Yield results one by one; of a pair of pairs, the four of them; of None nothing."""
    if isinstance(found, tuple):
        for one in found:
            yield from _flat(one)
    elif found is not None:
        yield found


def _fits(given: Sequence[object], wanted: Sequence[Result]) -> bool:
    return len(given) == len(wanted) and all(
        isinstance(one, Tensor)
        and tuple(one.shape) == result.shape
        and result.dtype in ("", _name(one.dtype))
        for one, result in zip(given, wanted, strict=True)
    )


def _finite(one: object) -> bool:
    if not isinstance(one, Tensor) or not one.is_floating_point():
        return True
    return bool(one.float().isfinite().all())


def _shown(given: Sequence[object]) -> str:
    said = [
        f"{list(one.shape)} {_name(one.dtype)}" if isinstance(one, Tensor) else type(one).__name__
        for one in given
    ]
    return " and ".join(said) or "None"


def _asked(wanted: Sequence[Result]) -> str:
    return " and ".join(f"{list(r.shape)} {r.dtype}".strip() for r in wanted) or "None"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
