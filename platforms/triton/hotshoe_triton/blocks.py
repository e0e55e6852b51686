"""Candidate `blocks` of slot `linear`: 8-bit floats with scales by block, of the weight and of x.

So DeepSeek and others publish their checkpoints: a scale for every 128x128 weights, and, in each
step, one for every 128 columns of a row of x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Quantized, QuantSpec, Verdict, renewed
from hotshoe.slots.reference import linear as reference
from hotshoe_triton.device import DTYPES, KIB, OCP, arch_of, chaining, judge
from hotshoe_triton.quantize import FP8
from hotshoe_triton.tuning import LinearConfig, split_of

#: Rows and columns of a weight that share a scale.
HEIGHT, WIDTH = 128, 128
WEIGHT = QuantSpec("fp8_e4m3", "block", block_shape=(HEIGHT, WIDTH))
#: Rows of x in a tile.
ROW_BLOCKS = (16, 32, 64, 128)
#: Blocks of a row that a program quantizes.
AT_ONCE = 16


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge types, the form of both operands, and what the device multiplies."""
    x = QuantSpec("fp8_e4m3", "group", WIDTH, dynamic=True)
    refusals = {
        f"operands {spec.weight} and {spec.activation} are not 8-bit floats with scales of 128x128 "
        f"weights and, dynamically, of {WIDTH} columns of x": spec.activation != x
        or spec.weight not in (WEIGHT, replace(WEIGHT, online=True)),
        f"rows of {spec.in_features} are not a multiple of {WIDTH}": bool(spec.in_features % WIDTH),
        f"results of type {spec.out_dtype} are not written": (spec.out_dtype or spec.dtype)
        not in DTYPES,
    }
    verdict = judge(facts, spec.dtype, refusals)
    if verdict.accepted and arch_of(facts).fp8 != OCP:
        return judge(facts, spec.dtype, {f"{facts.arch} does not multiply {OCP}": True})
    return verdict


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    takes_quantized = True

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels import blocks

        assert spec.weight is not None
        self._kernels, self._spec, self._facts, self._quant = blocks, spec, facts, spec.weight
        self._n, self._k = spec.out_features, spec.in_features
        self._blocks = self._k // WIDTH
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._y_dtype: torch.dtype = getattr(torch, spec.out_dtype or spec.dtype)
        self._format = FP8[OCP]
        self._height = 1
        self._weight = torch.empty(0, dtype=self._format.dtype)
        self._scale = torch.empty(0)
        self._bias: Tensor | None = None
        self._counters = torch.empty(0)
        self._chaining = chaining(facts)
        self._configs = {rows: default(rows, self._n, self._blocks, facts) for rows in ROW_BLOCKS}

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        device = self._facts.device
        parts = [part.to(device) for part in tensors["weight"]]
        if "weight_scale" in tensors:
            scales = [
                reference.by_row(scale.to(device), len(part), self._quant)
                for scale, part in zip(tensors["weight_scale"], parts, strict=True)
            ]
        else:
            made = [reference.quantize_weight(part, self._quant) for part in parts]
            parts, scales = [values for values, _ in made], [scale for _, scale in made]
        # Blocks begin anew with each part; where they then meet, one scale serves many rows.
        self._height = 1 if any(len(part) % HEIGHT for part in parts[:-1]) else HEIGHT
        scale = torch.cat(scales).float()[:: self._height].T.contiguous()
        self._weight = renewed(self._weight, torch.cat(parts))
        self._scale = renewed(self._scale, scale)
        if self._spec.bias:
            bias = torch.cat(list(tensors["bias"])).to(device, self._dtype)
            self._bias = renewed(self._bias, bias)
        if not self._counters.numel():
            self._counters = torch.zeros(self._n, dtype=torch.int32, device=device)

    def state(self) -> dict[str, Tensor]:
        if not self._weight.numel():
            return {}
        held = {"weight": self._weight, "weight_scale": self._scale, "bias": self._bias}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        values, scale = self._quantized(x)
        y = torch.empty((len(values), self._n), dtype=self._y_dtype, device=values.device)
        if len(y):
            self._multiply(y, values, scale)
        return y

    def _quantized(self, x: Tensor | Quantized, rows: int = 0) -> tuple[Tensor, Tensor]:
        """Return values [rows, in_features] and scales [blocks, rows] of x.

        Args:
            x: [num_tokens, in_features], plain or quantized by blocks.
            rows: At least num_tokens, others are anything; 0 for as many.
        """
        if not isinstance(x, Tensor):
            values, scale = x[0], x[1].T
            more = max(rows - len(values), 0)
            if more:
                scale = torch.nn.functional.pad(scale, (0, more))
                values = torch.cat((values, values[:more]))
            return values, scale.contiguous()
        rows = rows or len(x)
        values = torch.empty((rows, self._k), dtype=self._format.dtype, device=x.device)
        scale = torch.empty((self._blocks, rows), dtype=torch.float32, device=x.device)
        if len(x):
            self._kernels.quantize_blocks[len(x), -(-self._blocks // AT_ONCE)](
                values, scale, x, x.stride(0), rows, BLOCKS=self._blocks, WIDTH=WIDTH,
                LIMIT=self._format.limit, AT_ONCE=AT_ONCE, num_warps=4, **self._chaining,
            )  # fmt: skip
        return values, scale

    def _multiply(self, y: Tensor, values: Tensor, scale: Tensor) -> None:
        rows = len(y)
        block = next((size for size in ROW_BLOCKS if rows <= size), ROW_BLOCKS[-1])
        config = self._configs[block]
        split = config.split_k if rows <= block else 1
        tiles = -(-self._n // config.block_n) * -(-rows // block)
        cells = tiles * split * config.block_n * block if split > 1 else 0
        partial = torch.empty(cells, dtype=torch.float32, device=y.device) if cells else y
        self._kernels.scaled_blocks[tiles, split](
            y, values, self._weight, scale, self._scale, y if self._bias is None else self._bias,
            partial, self._counters, rows, self._n, BLOCKS=self._blocks, WIDTH=WIDTH,
            HEIGHT=self._height, BIAS=self._bias is not None, BLOCK_M=block,
            BLOCK_N=config.block_n, SPLIT_K=split, GROUP_M=8, num_warps=config.warps,
            num_stages=config.stages, **self._chaining,
        )  # fmt: skip

    def configure(self, block: int, config: LinearConfig) -> None:
        """Use another configuration for so many rows in a tile; a tuner does."""
        self._configs[block] = config

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state().values())


def default(rows: int, n: int, blocks: int, facts: DeviceFacts) -> LinearConfig:
    """Choose without measuring, for so many rows of x in a tile."""
    arch = arch_of(facts)
    many = rows > 64
    block_n = 128 if many and arch.family == "hopper" else 64
    split = split_of(-(-n // block_n), blocks * WIDTH, WIDTH, 4, facts.compute_units)
    stages = 2 if arch.backend == "hip" else 3 if many or arch.shared_bytes < 150 * KIB else 4
    return LinearConfig("blocks", block_n, WIDTH, split, 8 if many else 4, stages)
