"""Holds interpreted kernels to their arguments: whatever they read or write must lie in one.

What a sanitizer does on a device, at the grain of whole tensors' memory, for every test that
interprets a kernel. The interpreter itself would read a neighbor's memory and go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

#: Methods of the interpreter that touch memory, and where their mask is among the arguments.
MASK_AT = {
    "create_masked_load": 1,
    "create_masked_store": 2,
    "create_atomic_cas": None,
    "create_atomic_rmw": 3,
}


class Bounds:
    """The memory that the running kernel may touch."""

    def __init__(self) -> None:
        self._first = self._end = np.empty(0, np.uint64)

    def allow(self, arguments: Iterable[object]) -> None:
        """Take over the tensors among a launch's arguments."""
        storages = [a.untyped_storage() for a in arguments if isinstance(a, torch.Tensor)]
        spans = sorted({(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages})
        self._first, self._end = np.array(spans, np.uint64).reshape(-1, 2).T

    def check(self, pointers: np.ndarray, mask: np.ndarray | None, nbytes: int) -> None:
        """Refuse accesses of so many bytes beside the arguments.

        Raises:
            IndexError: There is one.
        """
        if mask is not None:  # of whatever type the kernel computed it in
            pointers = pointers[np.broadcast_to(mask.astype(bool), pointers.shape)]
        at = pointers.ravel()
        owner = np.searchsorted(self._first, at, side="right") - 1
        inside = owner >= 0
        inside[inside] = at[inside] + np.uint64(nbytes) <= self._end[owner[inside]]
        if not inside.all():
            raise IndexError(
                f"{np.count_nonzero(~inside)} of {len(at)} accesses of {nbytes} bytes lie outside "
                f"the kernel's arguments, the first at {at[~inside][0]:#x}"
            )


def install() -> Bounds:
    """Check from now on."""
    bounds = Bounds()
    arguments_of = GridExecutor._init_args_hst

    def noted(self: Any, args: Any, kwargs: Any) -> Any:
        found = arguments_of(self, args, kwargs)
        bounds.allow([*found[0], *found[1].values()])
        return found

    GridExecutor._init_args_hst = noted
    for name, mask_at in MASK_AT.items():
        method = getattr(InterpreterBuilder, name)
        setattr(InterpreterBuilder, name, _checked(method, bounds, mask_at))
    return bounds


def _checked(method: Callable[..., Any], bounds: Bounds, mask_at: int | None) -> Any:
    pointer_at = 1 if method.__name__ == "create_atomic_rmw" else 0

    @wraps(method)
    def checked(self: Any, *arguments: Any) -> Any:
        pointers = arguments[pointer_at]
        mask = None if mask_at is None else arguments[mask_at].data
        bounds.check(pointers.data, mask, pointers.get_element_ty().primitive_bitwidth // 8)
        return method(self, *arguments)

    return checked
