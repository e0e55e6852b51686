"""Products of many rows by an algorithm of cuBLASLt that was measured, not by its own first choice.

PyTorch takes what the library's model of the device ranks first. A GPU that multiplies without a
pause lowers its clocks to stay within its power, and there other tiles take up to 6 % less time;
those that were measured give equal bits. Source: cuBLAS documentation, "Using the cuBLASLt API".
"""

from __future__ import annotations

import ctypes
import logging
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache

import torch
from torch import Tensor

from hotshoe.errors import EngineError

LOG = logging.getLogger(__name__)
#: What the library ranks for a product of so many rows serves others too (seen from 4,096 on).
ROWS = 8192
#: cudaDataType_t of x, the weight and y; sums are float32.
KINDS = {torch.float16: 2, torch.bfloat16: 14}
#: Bytes that addresses and rows must be multiples of.
ALIGNMENT = 16
_FLOAT32, _COMPUTE_FLOAT32 = 0, 68
_TRANSPOSE_FIRST, _TRANSPOSED = 3, 1
_TILE = 1
_MOST_RANKED = 64
_NOT_SUPPORTED = 15


class _Ranked(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_OUT = POINTER(c_void_p)
_MATRIX = (c_void_p, c_void_p)
_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "Create": (_OUT,),
    "MatmulDescCreate": (_OUT, c_int, c_int),
    "MatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatrixLayoutCreate": (_OUT, c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutDestroy": (c_void_p,),
    "MatmulPreferenceCreate": (_OUT,),
    "MatmulAlgoGetHeuristic": (
        *(c_void_p,) * 7, c_int, POINTER(_Ranked), POINTER(c_int),
    ),
    "MatmulAlgoConfigGetAttribute": (c_void_p, c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "Matmul": (
        c_void_p, c_void_p, c_void_p, *_MATRIX, *_MATRIX, c_void_p, *_MATRIX, *_MATRIX, c_void_p,
        c_void_p, c_size_t, c_void_p,
    ),
}  # fmt: skip


@cache
def library() -> ctypes.CDLL:
    """Return the library that PyTorch has loaded.

    Raises:
        OSError: There is none.
    """
    major = str(torch.version.cuda).partition(".")[0]
    found = ctypes.CDLL(f"libcublasLt.so.{major}")
    for name, arguments in _FUNCTIONS.items():
        getattr(found, f"cublasLt{name}").argtypes = arguments
    return found


def _call(name: str, *arguments: object) -> None:
    status = getattr(library(), f"cublasLt{name}")(*arguments)
    if status:
        raise EngineError(f"cublasLt{name} failed with status {status}")


def _made(name: str, *arguments: int) -> c_void_p:
    """Return a new object of the library's."""
    made = c_void_p()
    _call(name, byref(made), *arguments)
    return made


@cache
def _handle(device: int) -> c_void_p:
    """Return what calls on a device, the current one, go through."""
    return _made("Create")


@cache
def _operation() -> c_void_p:
    """Describe y' = w' x of matrices that the library takes to be stored by columns."""
    made = _made("MatmulDescCreate", _COMPUTE_FLOAT32, _FLOAT32)
    transposed = c_int32(_TRANSPOSED)
    _call("MatmulDescSetAttribute", made, _TRANSPOSE_FIRST, byref(transposed), c_size_t(4))
    return made


class Product:
    """x [m, k] times a weight [n, k], transposed, without a bias.

    Args:
        n, k: Output and input features.
        dtype: Of all three; one of `KINDS`.
        tile: As `tiles` gave it.

    Raises:
        ValueError: This version of the library has no such tile.
    """

    def __init__(self, n: int, k: int, dtype: torch.dtype, tile: int) -> None:
        self._n, self._k, self._kind = n, k, KINDS[dtype]
        self._weight = _made("MatrixLayoutCreate", self._kind, k, n, k)
        found = _ranked(n, k, self._kind)
        if tile not in found:
            raise ValueError(f"this cuBLASLt offers no tile {tile}")
        self._algorithm = found[tile]

    def __call__(self, y: Tensor, x: Tensor, weight: Tensor) -> None:
        """Write y [m, n]; rows of the weight and of y lie side by side."""
        m = x.size(0)
        rows = _made("MatrixLayoutCreate", self._kind, self._k, m, x.stride(0))
        results = _made("MatrixLayoutCreate", self._kind, self._n, m, self._n)
        device = torch.cuda.current_device()
        stream = torch.cuda.current_stream(device).cuda_stream
        at = y.data_ptr()
        try:
            _call(
                "Matmul", _handle(device), _operation(), byref(c_float(1)), weight.data_ptr(),
                self._weight, x.data_ptr(), rows, byref(c_float(0)), at, results, at, results,
                self._algorithm, None, 0, stream,
            )  # fmt: skip
        finally:
            _call("MatrixLayoutDestroy", rows)
            _call("MatrixLayoutDestroy", results)


@cache
def product(n: int, k: int, dtype: torch.dtype, tile: int) -> Product | None:
    """Return a product, the same for all layers, or None, which is logged, where there is none."""
    try:
        return Product(n, k, dtype, tile)
    except (OSError, ValueError) as error:
        LOG.warning("%dx%d: %s; cuBLAS chooses the algorithm for many rows", n, k, error)
        return None


def fits(x: Tensor) -> bool:
    """Tell whether the rows of x begin where algorithms take them to begin."""
    return not (x.stride(0) * x.itemsize | x.data_ptr()) % ALIGNMENT and x.stride(1) == 1


def tiles(n: int, k: int, dtype: torch.dtype) -> list[int]:
    """List the tiles that the library offers for a product, its first choice first."""
    return list(_ranked(n, k, KINDS[dtype]))


def _ranked(n: int, k: int, kind: int) -> dict[int, ctypes.Array[c_uint64]]:
    """Return the best algorithm of each tile, of those that need no memory."""
    layouts = [
        _made("MatrixLayoutCreate", kind, *shape)
        for shape in ((k, n, k), (k, ROWS, k), (n, ROWS, n), (n, ROWS, n))
    ]
    preference = _made("MatmulPreferenceCreate")
    ranked, count = (_Ranked * _MOST_RANKED)(), c_int()
    handle = _handle(torch.cuda.current_device())
    status = library().cublasLtMatmulAlgoGetHeuristic(
        handle, _operation(), *layouts, preference, _MOST_RANKED, ranked, byref(count)
    )
    if status not in (0, _NOT_SUPPORTED):  # no algorithm computes it
        raise EngineError(f"cublasLtMatmulAlgoGetHeuristic failed with status {status}")
    found: dict[int, ctypes.Array[c_uint64]] = {}
    for one in ranked[: count.value]:
        tile, written = c_int32(), c_size_t()
        name = "MatmulAlgoConfigGetAttribute"
        _call(name, one.algorithm, _TILE, byref(tile), c_size_t(4), byref(written))
        found.setdefault(tile.value, one.algorithm)
    return found
