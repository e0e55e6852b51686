"""Candidate `streaming` of slot `linear`: what was tuned on NVIDIA's GPUs.

There are two kernels more: for few rows `streamed`, on sm_90, and for many `cublaslt`.

The copy engine reads rows that begin at multiples of 16 bytes. Weights always do; an x that does
not goes through the portable kernel, or the algorithm that cuBLAS chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Verdict, accept
from hotshoe_cuda import cublaslt
from hotshoe_cuda.targets import TUNED
from hotshoe_triton import library, linear
from hotshoe_triton.device import KIB, arch_of
from hotshoe_triton.linear import Launch
from hotshoe_triton.tuning import BUCKETS, LIBRARY, LinearConfig, default, itemsize_of

#: Versions of Triton whose Gluon, an experimental part of it, compiles the kernel.
VERSIONS = ("3.6", "3.7", "3.8")
#: Types of the weight that it multiplies.
KINDS = ("bfloat16", "float16", "fp8_e4m3")
#: Rows for which algorithms are tuned, and from which on they are used.
MANY, MANY_FROM = cublaslt.ROWS, 4096
#: One row of x, and a program for each output.
ALONE = LinearConfig("gemv", 1, 2048, 1, 4, 2)
#: Input features up to which programs do not share a tile, and how outputs are made in pairs there,
#: and where few rows are long.
SHORT = 2048
SHORT_PAIRS = LinearConfig("gemv", 2, 1024, 1, 4, 2)
IN_PAIRS = LinearConfig("gemv", 2, 2048, 1, 8, 2)
#: Shared memory of a program that the tuner tries; several fit a multiprocessor, or one alone.
BUDGETS = (48 * KIB, 72 * KIB, 100 * KIB, 150 * KIB, 200 * KIB)


def missing_gluon(facts: DeviceFacts) -> str:
    """Return why a device cannot have Gluon kernels for sm_90, or "" if it can."""
    if arch_of(facts).family != "hopper":
        return f"{facts.arch} lacks sm_90's wgmma"
    if find_spec("triton") is None:
        return "Triton is not installed"
    from triton import __version__, knobs

    if __version__.rpartition(".")[0] not in VERSIONS:
        return f"it is written for Triton {', '.join(VERSIONS)}, this is {__version__}"
    return "Triton's interpreter does not run it" if knobs.runtime.interpret else ""


def missing(spec: LinearSpec, facts: DeviceFacts) -> str:
    """Return why a product cannot have kernel `streamed`, or "" if it can."""
    kind = spec.weight.format if spec.weight else spec.dtype
    if arch_of(facts).family == "hopper" and kind not in KINDS:
        return f"it does not multiply {kind}"
    return missing_gluon(facts)


def untuned(bucket: int, n: int, k: int, itemsize: int, facts: DeviceFacts) -> LinearConfig:
    """Choose for sm_90 without measuring.

    The rule comes from twenty products of five models (`benchmarks/notes/measurements.md`): it
    takes 1.02 of the time of each one's best configuration, 1.14 at most. These were of bfloat16;
    weights of 8 bits follow the tables of tuned shapes, which name the same tiles, unmeasured. What
    it says of `SHORT` rows and of one row comes from whole steps of two models, where a product's
    weights arrive while the kernel in front of it runs.

    Args:
        bucket: Rows of x.
        n, k: Output and input features.
        itemsize: Bytes of a weight's element, 1 or 2.
        facts: The device.
    """
    tiles, units, block_k = -(-n // 64), facts.compute_units, 256 // itemsize
    if itemsize > 1 and bucket == 1 and (k > SHORT // 2 or not units <= tiles <= 2 * units):
        return one_row(n, k, itemsize, facts)
    if itemsize > 1 and bucket > 32 and tiles < units and k >= SHORT:
        return LIBRARY
    split, is_short = 1, itemsize > 1 and k <= SHORT
    while not is_short and split < 8 and 2 * split * tiles <= units and k >= 12 * split * block_k:
        split *= 2
    # A program that has a multiprocessor to itself keeps twice as much on its way.
    alone = not is_short and itemsize > 1 and 2 * split * tiles <= units
    stages = (200 if alone else 100) * KIB // ((64 + max(16, bucket)) * 256)
    return LinearConfig("streamed", 64, block_k, split, 4, stages)


def one_row(n: int, k: int, itemsize: int, facts: DeviceFacts) -> LinearConfig:
    """Choose for one row of x. Programs of few long rows ask the memory for more at a time."""
    if n < 24 * facts.compute_units and k >= 4096:
        return ALONE if n >= 8 * facts.compute_units else IN_PAIRS
    found = default(1, n, k, itemsize, facts)
    return SHORT_PAIRS if k == SHORT and found.split_k == 1 else found


def ranks_algorithms(spec: LinearSpec) -> bool:
    """Tell whether cuBLASLt's algorithms for a product are known here."""
    types = {spec.dtype, spec.out_dtype or spec.dtype}
    return spec.weight is None and not spec.bias and types in ({"bfloat16"}, {"float16"})


class Linear(library.Linear):
    """See `hotshoe.slots.LinearOp`; the library is cuBLAS or CUTLASS."""

    folder = TUNED
    buckets = (*BUCKETS, MANY)

    @staticmethod
    def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
        """Judge as the portable kernels are judged; say what sm_90 has to do without."""
        verdict = linear.supports(spec, facts)
        if verdict.accepted and arch_of(facts).family == "hopper" and missing(spec, facts):
            note = f"{verdict.reason}, without `streamed`: {missing(spec, facts)}"
            return accept(verdict.score, note)
        return verdict

    @staticmethod
    def configs(bucket: int, spec: LinearSpec, facts: DeviceFacts) -> Iterator[LinearConfig]:
        """Yield what a tuner should try."""
        if bucket == MANY:
            if ranks_algorithms(spec):
                shape = spec.out_features, spec.in_features
                for tile in cublaslt.tiles(*shape, getattr(torch, spec.dtype)):
                    yield LinearConfig("cublaslt", tile=tile)
            return
        yield from library.Linear.configs(bucket, spec, facts)
        if missing(spec, facts):
            return
        itemsize = itemsize_of(spec)
        heights = ((64, 4), (128, 4), (128, 8), (256, 8))
        for (block_n, warps), block_k, split in product(heights, (64, 128, 256), (1, 2, 4, 8)):
            programs = -(-spec.out_features // block_n) * split
            stage_bytes = (block_n + max(16, bucket)) * block_k * itemsize
            narrow, wide = block_k * itemsize < 128, block_k * itemsize > 256
            crowded = split > 1 and programs > 4 * facts.compute_units
            if not narrow and not wide and not crowded and split * block_k <= spec.in_features:
                for stages in sorted({budget // stage_bytes for budget in BUDGETS} - {0, 1}):
                    yield LinearConfig("streamed", block_n, block_k, split, warps, stages)

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        again = bool(self._launches)
        super().load(tensors)
        if not again:  # a recording may use what was configured
            self.configure(MANY, self._table.get((self._n, self._k, MANY), LIBRARY))

    def configure(self, bucket: int, config: LinearConfig) -> None:
        """Use another configuration for a bucket of rows; the tuner does."""
        self._product: cublaslt.Product | None
        if bucket != MANY:
            super().configure(bucket, config)
        elif config == LIBRARY or not ranks_algorithms(self._spec):
            self._product = None
        else:
            self._product = cublaslt.product(self._n, self._k, self._dtype, config.tile)

    def apply(self, x: Tensor, quantized: tuple[Tensor, Tensor] | None) -> Tensor:
        if self._product is None or x.size(0) < MANY_FROM or not cublaslt.fits(x):
            return super().apply(x, quantized)
        y = torch.empty((x.size(0), self._n), dtype=self._y_dtype, device=x.device)
        self._product(y, x, self._weight)
        return y

    def _config(self, bucket: int) -> LinearConfig:
        found = self._table.get((self._n, self._k, bucket))
        if missing(self._spec, self._facts):
            return self._portable(bucket) if found is None or found.kernel == "streamed" else found
        return found or untuned(bucket, self._n, self._k, self._weight.itemsize, self._facts)

    def _portable(self, bucket: int) -> LinearConfig:
        return default(bucket, self._n, self._k, self._weight.itemsize, self._facts)

    def _launch(self, config: LinearConfig, bucket: int) -> Launch:
        if config.kernel != "streamed":
            return super()._launch(config, bucket)
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        from hotshoe_cuda.kernels.streamed import streamed

        weight, counters, n = self._weight, self._counters, self._n
        bias = weight if self._bias is None else self._bias
        scale = weight if self._scale is None else self._scale
        rows, split, block_k = max(16, bucket), config.split_k, config.block_k
        grid = (-(-n // config.block_n), split)
        steps = -(-self._k // (block_k * split))
        cells = split * grid[0] * config.block_n * rows if split > 1 else 0
        layout = NVMMASharedLayout(128, 8 * weight.itemsize, 2)
        w_desc = TensorDescriptor.from_tensor(weight, [config.block_n, block_k], layout)
        constants = {
            "BIAS": self._bias is not None,
            "SCALED": self._scale is not None,
            "BLOCK_M": rows,
            "BLOCK_N": config.block_n,
            "BLOCK_K": block_k,
            "SPLIT": split > 1,
            "STAGES": config.stages,
            "num_warps": config.warps,
            "launch_pdl": True,
        }
        unaligned = super()._launch(self._portable(bucket), bucket)

        def some(y: Tensor, x: Tensor, quantized: tuple[Tensor, Tensor] | None) -> None:
            values, x_scale = (x, x) if quantized is None else quantized
            if (values.stride(0) * values.itemsize | values.data_ptr()) % 16:
                unaligned(y, x, quantized)
                return
            partial = torch.empty(cells, dtype=torch.float32, device=y.device) if cells else y
            x_desc = TensorDescriptor.from_tensor(values, [rows, block_k], layout)
            streamed[grid](
                y, x_desc, w_desc, bias, scale, x_scale, partial, counters, x.size(0), n, split,
                steps, **constants,
            )  # fmt: skip

        return some
