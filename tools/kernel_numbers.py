"""Compare kernels of `hotshoe_native` with float64, by numpy alone: for processors without torch.

`python tools/kernel_numbers.py LIBRARY MODULE` loads one build, such as `_generic`, and exits with
an error at the first number that is off. Values are fresh each time. `check_arm.sh` runs it under
emulation; the tests in `tests/native` cover every kernel where torch is installed.
"""

import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SHAPES = ((1, 64), (5, 80), (3, 4096), (7, 33))
PRODUCTS = ((1, 64, 64), (5, 96, 80), (33, 130, 257), (64, 64, 1024))
#: Largest error as a share of the number and one, by type: code, tolerance.
TYPES = {"float32": (0, 3e-6), "bfloat16": (1, 9e-3), "float16": (2, 1.2e-3)}
EPS = 1e-5
ALIGNMENT = 64

rng = np.random.default_rng()


def stored(values: np.ndarray, kind: str) -> np.ndarray:
    """Round to a type; bfloat16 is kept as its bits."""
    if kind != "bfloat16":
        return np.ascontiguousarray(values, kind)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def wide(held: np.ndarray) -> np.ndarray:
    """Return what is kept as float64."""
    if held.dtype == np.uint16:
        held = (held.astype(np.uint32) << 16).view(np.float32)
    return held.astype(np.float64)


def normal(kind: str, *shape: int) -> np.ndarray:
    return stored(rng.normal(size=shape), kind)


def check(name: str, found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    error = (np.abs(wide(found) - wanted) / (np.abs(wanted) + 1)).max()
    if not error <= tolerance:
        sys.exit(f"{name} is off by {error:.2e}, of {tolerance:.1e}")


def at(array: np.ndarray) -> int:
    return array.ctypes.data


def rms(x: np.ndarray) -> np.ndarray:
    return np.sqrt((x**2).mean(1, keepdims=True) + EPS)


def norms(native: Any, kind: str, rows: int, size: int) -> None:
    code, tolerance = TYPES[kind]
    what = f"{kind} {rows}x{size}"
    x, residual = normal(kind, rows, size), normal(kind, rows, size)
    weight, bias = normal(kind, size), normal(kind, size)
    out = np.empty_like(x)
    sizes = (rows, size, size, size)
    native.rms_norm(at(out), at(x), at(weight), *sizes, EPS, 1.0, code)
    wanted = wide(x) / rms(wide(x)) * (1 + wide(weight))
    check(f"rms_norm {what}", out, wanted, tolerance)
    native.layer_norm(at(out), at(x), at(weight), at(bias), *sizes, EPS, code)
    apart = wide(x) - wide(x).mean(1, keepdims=True)
    wanted = apart / rms(apart) * wide(weight) + wide(bias)
    check(f"layer_norm {what}", out, wanted, tolerance)
    total = residual.copy()
    native.add_rms_norm(at(out), at(x), at(total), at(weight), *sizes, size, EPS, 0.0, 0.5, code)
    check(f"add {what}", total, wide(residual) + 0.5 * wide(x), tolerance)
    wanted = wide(total) / rms(wide(total)) * wide(weight)
    check(f"add_rms_norm {what}", out, wanted, tolerance)


def others(native: Any, kind: str, rows: int, size: int) -> None:
    code, tolerance = TYPES[kind]
    both, out = normal(kind, rows, 2 * size), np.empty((rows, size), normal(kind, 1).dtype)
    native.gated_activation(at(out), at(both), rows, size, size, 2 * size, 0, code)
    gate, up = wide(both)[:, :size], wide(both)[:, size:]
    check(f"gated_activation {kind}", out, gate / (1 + np.exp(-gate)) * up, 2 * tolerance)
    table, ids = normal(kind, rows, size), rng.integers(0, rows, size=9).astype(np.int32)
    out = np.empty((9, size), table.dtype)
    native.embedding(at(out), at(table), at(ids), 9, size, rows, size, size, 1.0, False, code)
    check(f"embedding {kind}", out, wide(table)[ids], 0.0)


def packed(native: Any, code: int, n: int, k: int) -> tuple[np.ndarray, int]:
    """Return memory for a weight, and where it begins."""
    memory = np.zeros(native.linear_packed_nbytes(code, n, k) + ALIGNMENT, np.uint8)
    return memory, -(-at(memory) // ALIGNMENT) * ALIGNMENT


def floats(native: Any, kind: str, m: int, n: int, k: int) -> None:
    code, _ = TYPES[kind]
    weight, x = stored(rng.normal(size=(n, k)) / k**0.5, kind), normal(kind, m, k)
    bias, y = rng.normal(size=n).astype(np.float32), np.empty((m, n), np.float32)
    _memory, place = packed(native, code, n, k)
    native.linear_pack_rows(code, place, n, k, 0, n, code, at(weight), k)
    native.linear(code, place, n, k, m, code, at(x), k, at(bias), 0, at(y), n)
    check(f"linear {kind} {m}x{n}x{k}", y, wide(x) @ wide(weight).T + bias, 2e-5)


def integers(native: Any, m: int, n: int, k: int) -> None:
    """Multiply integers, whose sums are exact; a tie in rounding x may fall to either side."""
    weight = rng.integers(-127, 128, size=(n, k)).astype(np.int8)
    scales, x = rng.uniform(0.1, 1, n).astype(np.float32), normal("float32", m, k)
    _memory, place = packed(native, 3, n, k)
    y = np.empty((m, n), np.float32)
    native.linear_pack_rows(3, place, n, k, 0, n, 3, at(weight), k, at(scales))
    native.linear(3, place, n, k, m, 0, at(x), k, 0, 0, at(y), n)
    step = np.abs(x).max(1, keepdims=True) / np.float32(127)
    wanted = np.rint(x / step).astype(np.float64) @ weight.T * step * scales
    check(f"linear int8 {m}x{n}x{k}", y / np.abs(wanted).max(), wanted / np.abs(wanted).max(), 1e-3)


def cases() -> Iterator[tuple[Callable[..., None], tuple[Any, ...]]]:
    for kind in TYPES:
        for shape in SHAPES:
            yield norms, (kind, *shape)
            yield others, (kind, *shape)
    for sizes in PRODUCTS:
        yield floats, ("float32", *sizes)
        yield floats, ("bfloat16", *sizes)
        yield integers, sizes


def main() -> None:
    library, name = sys.argv[1:]
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    native.set_threads(2)
    count = 0
    for run, arguments in cases():
        run(native, *arguments)
        count += 1
    print(f"{count} cases of {name} on {platform.machine()} are right: {native.info()}")


if __name__ == "__main__":
    main()
