"""Plays what Gluon adds to Triton, so that the interpreter runs kernels that are written in it.

Layouts say where numbers lie, not which they are, so they are left out. Shared memory is arrays.
What is copied in the background arrives when a kernel waits for it, and not before: until then its
place holds numbers that a test would see. What is left out, too, is whether threads wait for each
other, and whether a layout is what an instruction takes: the compiler and a GPU tell that.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter


def tensor(data: np.ndarray, dtype: tl.dtype) -> tl.tensor:
    """Return an interpreted tensor of some numbers."""
    return tl.tensor(interpreter.TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))


def number(x: Any) -> int:
    """Return an interpreted scalar as a number."""
    return int(np.asarray(x.handle.data).item()) if isinstance(x, tl.tensor) else x


class Layout:
    """Stands for any layout."""

    def __init__(self, *arguments: Any) -> None:
        self.warps_per_cta = arguments[1] if len(arguments) > 1 else None


class Shared:
    """A part of shared memory."""

    def __init__(self, data: np.ndarray, dtype: tl.dtype) -> None:
        self.data, self.dtype, self.shape = data, dtype, list(data.shape)

    def index(self, at: Any) -> Shared:
        return Shared(self.data[number(at)], self.dtype)

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.data.transpose(order), self.dtype)

    def store(self, x: tl.tensor) -> None:
        self.data[...] = x.handle.data

    def load(self, _layout: Layout) -> tl.tensor:
        return tensor(self.data.copy(), self.dtype)


class Copies:
    """What is copied in the background, in groups."""

    def __init__(self) -> None:
        self._groups: list[list[tuple[np.ndarray, ...]]] = [[]]

    def async_copy_global_to_shared(self, place: Shared, pointers: Any, mask: Any = None) -> None:
        data = tl.load(pointers, mask=mask).handle.data
        there = np.array(True) if mask is None else mask.handle.data.astype(bool)
        there = np.broadcast_to(there, data.shape)
        self._groups[-1].append((place.data, data, there))
        place.data[there] = 0x7B if place.data.dtype.kind == "u" else 77

    def commit_group(self) -> None:
        self._groups.append([])

    def wait_group(self, outstanding: int) -> None:
        while len(self._groups) - 1 > outstanding:
            for place, data, there in self._groups.pop(0):
                place[there] = data[there]


def mma_v2(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    """Multiply, in float32."""
    wide = a.to(tl.float32).handle.data, b.to(tl.float32).handle.data
    return tensor(np.matmul(*wide) + acc.handle.data, tl.float32)


def assembly(
    text: str, _registers: str, words: list[tl.tensor], _dtype: Any, _pure: bool, pack: int
) -> Any:
    """Play the assembly of `kernels/narrow.py`: 8 by 8 numbers turned over; float16 of one word, or
    of pairs from two."""
    if "prefetch" in text:
        return words[1]
    if "movmatrix" in text:
        [x] = words
        squares = x.handle.data.reshape(x.shape[0], x.shape[1] // 8, 8, x.shape[2] // 8, 8)
        return tensor(squares.swapaxes(2, 4).reshape(x.shape).copy(), x.dtype)
    found = [word.to(tl.float32).to(tl.float16).handle.data for word in words]
    if len(found) == 1:
        return tensor(found[0], tl.float16)
    even, odd = (x.reshape(*x.shape[:-1], -1, pack) for x in found)
    pairs = np.stack((even, odd), -1).reshape(*even.shape[:-1], 2, pack)
    return tuple(
        tensor(pairs[..., half, :].reshape(found[0].shape).copy(), tl.float16) for half in (0, 1)
    )


class Language:
    """The module of Gluon's language; what is not here is as in Triton's."""

    float16, float32, int32, int64 = tl.float16, tl.float32, tl.int32, tl.int64
    BlockedLayout = SliceLayout = DotOperandLayout = Layout
    SwizzledSharedLayout = NVMMADistributedLayout = DistributedLinearLayout = Layout
    inline_asm_elementwise = staticmethod(assembly)
    static_range = staticmethod(range)

    def __init__(self, warps: int) -> None:
        self.warps = warps

    def __getattr__(self, name: str) -> Any:
        return getattr(tl, name)

    def constexpr(self, value: Any) -> Any:
        return value

    def num_warps(self) -> int:
        return self.warps

    def arange(self, first: int, end: int, _layout: Any = None) -> tl.tensor:
        return tl.arange(first, end)

    def zeros(self, shape: Sequence[int], dtype: tl.dtype, _layout: Any = None) -> tl.tensor:
        return tl.zeros(shape, dtype)

    def full(self, shape: Sequence[int], x: Any, dtype: tl.dtype, _layout: Any = None) -> tl.tensor:
        return tl.full(shape, x, dtype)

    def full_like(self, like: tl.tensor, x: Any) -> tl.tensor:
        return tl.full(like.shape, x, like.dtype)

    def convert_layout(self, x: tl.tensor, _layout: Any, assert_trivial: bool = False) -> tl.tensor:
        return x

    def allocate_shared_memory(self, dtype: tl.dtype, shape: Sequence[int], _layout: Any) -> Shared:
        data = np.zeros(shape, interpreter._get_np_dtype(dtype))
        data.view(np.uint8)[...] = 0xFF  # NaN of every type
        return Shared(data, dtype)


def without_imports(text: str) -> str:
    """Return a module's text, but for what it imports of Gluon and of this package."""
    tree = ast.parse(text)
    lines = text.splitlines()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            last = node.end_lineno or node.lineno
            lines[node.lineno - 1 : last] = [""] * (last - node.lineno + 1)
    return "\n".join(lines)


class Kernel:
    """A kernel in Gluon, launched as such a kernel is.

    Args:
        paths: Files of what it calls, and then of itself.
        folder: Where the interpreter finds what is run.

    Attributes:
        launched: Grids.
        others_end: Called where a program waits for the kernels in front.
    """

    def __init__(self, paths: Sequence[Path], name: str, folder: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(tl.block_type, "layout", None, raising=False)
        init = interpreter.GridExecutor.__init__

        def constants_by_name(executor: Any, *arguments: Any) -> None:
            init(executor, *arguments)
            names = inspect.getfullargspec(executor.fn).args
            executor.constexprs = [x for x in names if x.isupper()]

        monkeypatch.setattr(interpreter.GridExecutor, "__init__", constants_by_name)
        text = "\n".join(without_imports(path.read_text(encoding="utf-8")) for path in paths)
        # A launch's own options are none of a kernel's arguments where it is interpreted.
        text = re.sub(r"(?<!gl\.)\bnum_warps\b", "NUM_WARPS", text)
        text = text.replace(" in range(", " in counted(")
        source = folder / paths[-1].name
        source.write_text(text, encoding="utf-8")
        self._language = Language(1)
        self.launched: list[tuple[int, ...]] = []
        self.others_end: Callable[[], object] = lambda: None

        def wait() -> None:
            self.others_end()

        module: dict[str, Any] = {
            "tl": tl,
            "gl": self._language,
            "gluon": types.SimpleNamespace(jit=triton.jit, constexpr_function=lambda f: f),
            "async_copy": Copies(),
            "mma_v2": mma_v2,
            "wait": wait,
            "barrier": lambda: None,
            "counted": lambda *bounds: range(*map(number, bounds)),
        }
        exec(compile(text, str(source), "exec"), module)
        self._kernel = module[name]

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*tensors: Any, num_warps: int, launch_pdl: bool, **constants: Any) -> None:
            self.launched.append(grid)
            self._language.warps = num_warps
            self._kernel[grid](*tensors, NUM_WARPS=num_warps, **constants)

        return launch
