"""What of transformers' code waits for the device: steps that do cannot be recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

#: These bring numbers to the host, but on a CPU no operation says so.
READS = {Tensor.tolist, Tensor.cpu, Tensor.numpy}
#: Tags of operations whose results, or their sizes, depend on numbers.
TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
#: These do so only where an index is a mask.
INDEXING = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}


@contextmanager
def watch_waits() -> Iterator[list[str]]:
    """Give a list that fills with the places, as `FILE:LINE`, whose calls wait for numbers."""
    found: list[str] = []
    with _Calls(found), _Operations(found):
        yield found


class _Calls(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in READS:
            self._found.append(_place())
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        waits = _masks(args) if name in INDEXING else not TAGS.isdisjoint(func.tags)
        if waits:
            self._found.append(_place())
        return func(*args, **(kwargs or {}))


def _masks(args: tuple[Any, ...]) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in args[1])


def _place() -> str:
    """Return the innermost line that is transformers'."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "transformers" not in frame.f_globals.get("__name__", ""):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
