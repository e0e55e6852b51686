"""Candidate `fp4` of slot `linear`: 4-bit floats in W and in x, for matrix units that scale groups.

NVFP4's groups of 16 have 8-bit floats for scales, and both operands one scale of the whole, which
the checkpoint has. MXFP4's groups of 32 have powers of two. W stays as published; x is quantized in
each step by a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Quantized, QuantSpec, Verdict, renewed
from hotshoe.slots.reference import linear as reference
from hotshoe_triton.device import DTYPES, KIB, arch_of, chaining, judge, next_power_of_2
from hotshoe_triton.groups import float_codes, stored_scale
from hotshoe_triton.tuning import LinearConfig, split_of

#: W and x, as their formats are called.
FORMS = {
    name: (QuantSpec("fp4_e2m1", "group", size), QuantSpec("fp4_e2m1", "group", size, dynamic=True))
    for name, size in (("nvfp4", 16), ("mxfp4", 32))
}
#: Sizes of the groups that matrix units scale, by architecture.
SCALED = dict.fromkeys(("sm_100", "sm_103", "sm_120"), (16, 32)) | {"gfx950": (32,)}
#: Those whose units the compiler does not reach.
NOT_COMPILED = {"sm_121": "Triton 3.6 compiles products of 4-bit floats for sm_120, not for sm_121"}
#: Types of scales: of 32 columns the exponents alone, as bytes.
SCALES = {16: torch.float8_e4m3fn, 32: torch.uint8}
#: Rows of x in a tile.
ROW_BLOCKS = (16, 32, 64, 128)
#: Rows of W in a tile: units of the largest devices take so many.
BLOCK_N = 128
#: Columns of a tile, and groups of a row that a program quantizes.
BLOCK_K, AT_ONCE = 256, 64


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge types, the form of both operands, and what the device multiplies."""
    written = f"results of type {spec.out_dtype} are not written"
    refusals = unscaled(facts) | form_refusals(spec, facts)
    refusals[written] = (spec.out_dtype or spec.dtype) not in DTYPES
    return judge(facts, spec.dtype, refusals)


def unscaled(facts: DeviceFacts) -> dict[str, bool]:
    """Return why a device multiplies no 4-bit floats, and whether it is so."""
    lacking = f"{facts.arch} has no matrix units that scale groups of 4-bit floats"
    return {NOT_COMPILED.get(facts.arch, lacking): facts.arch not in SCALED}


def form_refusals(spec: LinearSpec, facts: DeviceFacts) -> dict[str, bool]:
    """Return what operands must not be, and whether they are."""
    weight, x = spec.weight, spec.activation
    size = weight.group_size if weight else None
    sizes = SCALED.get(facts.arch, ())
    return {
        f"operands {weight} and {x} are not both 4-bit floats with a scale for each group, "
        "stored and computed as they come": (weight, x) not in FORMS.values(),
        f"groups of {size} are not scaled by matrix units, only {sizes}": size not in sizes,
        f"groups of {size} do not divide {spec.in_features} inputs": bool(
            size and spec.in_features % size
        ),
    }


class QuantizeGroups:
    """Quantizes activations [num_tokens, columns] to 4-bit floats, each group by itself.

    Args:
        columns: Of x; `size` divides them.
        size: Columns of a group.
        facts: The device.
        wholes: Scales of all x that there are, for groups of 16; the largest counts.
    """

    def __init__(self, columns: int, size: int, facts: DeviceFacts, wholes: int = 1) -> None:
        from hotshoe_triton.kernels.fp4 import quantize_groups

        self._kernel, self._groups, self._size = quantize_groups, columns // size, size
        self.constants = {"SIZE": size, "WHOLES": wholes, "BLOCK_W": next_power_of_2(wholes)}
        self._chaining = chaining(facts)

    def __call__(self, x: Tensor, whole: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return bytes [num_tokens, columns / 2] and scales [num_tokens, groups].

        Args:
            x: [num_tokens, columns].
            whole: [wholes] float32, zero where one says nothing; None for groups of 32.
        """
        rows, groups, device = len(x), self._groups, x.device
        values = torch.empty((rows, groups * self._size // 2), dtype=torch.uint8, device=device)
        scale = torch.empty((rows, groups), dtype=SCALES[self._size], device=device)
        self._kernel[rows, -(-groups // AT_ONCE)](
            values, scale, x, x if whole is None else whole, x.stride(0), GROUPS=groups,
            AT_ONCE=AT_ONCE, num_warps=4, **self.constants, **self._chaining,
        )  # fmt: skip
        return values, scale


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels import fp4

        assert spec.weight is not None and spec.weight.group_size is not None
        self._kernels, self._spec, self._facts = fp4, spec, facts
        self._n, self._k, self._size = spec.out_features, spec.in_features, spec.weight.group_size
        self._quantize = QuantizeGroups(self._k, self._size, facts)
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._y_dtype: torch.dtype = getattr(torch, spec.out_dtype or spec.dtype)
        self._held: dict[str, Tensor] = {}
        self._chaining = chaining(facts)
        self._configs = {rows: default(rows, spec, facts) for rows in ROW_BLOCKS}
        self._counters = torch.empty(0)

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        device = self._facts.device
        found: dict[str, list[Tensor]] = {"packed": [], "weight_scale": [], "scale": []}
        parts = tensors["weight"]
        one = [torch.ones(1)] * len(parts)
        x_scale = reference.common_scale(tensors.get("input_scale", one)).to(device)
        wholes = tensors.get("weight_global_scale", one)
        for part, scale, whole in zip(parts, tensors["weight_scale"], wholes, strict=True):
            factor = whole.to(device, torch.float32).reshape(1)
            found["packed"].append(packed(part.to(device)))
            found["weight_scale"].append(stored_scale(scale.to(device), factor, self._size))
            found["scale"].append((factor * x_scale).expand(len(part)))
        made = {name: torch.cat(rows) for name, rows in found.items()}
        made["input_scale"] = x_scale.reshape(1)
        if self._spec.bias:
            made["bias"] = torch.cat(list(tensors["bias"])).to(device, self._dtype)
        empty = torch.empty(0)
        self._held = {name: renewed(self._held.get(name, empty), made[name]) for name in made}
        if not self._counters.numel():
            self._counters = torch.zeros(self._n, dtype=torch.int32, device=device)

    def state(self) -> dict[str, Tensor]:
        return dict(self._held)

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        assert isinstance(x, Tensor)
        y = torch.empty((len(x), self._n), dtype=self._y_dtype, device=x.device)
        if len(x):
            self._multiply(y, *self._quantize(x, self._held["input_scale"]))
        return y

    def _multiply(self, y: Tensor, values: Tensor, scale: Tensor) -> None:
        rows = len(y)
        block = next((size for size in ROW_BLOCKS if rows <= size), ROW_BLOCKS[-1])
        config = self._configs[block]
        split = config.split_k if rows <= block else 1
        tiles = -(-self._n // config.block_n) * -(-rows // block)
        cells = tiles * split * config.block_n * block if split > 1 else 0
        partial = torch.empty(cells, dtype=torch.float32, device=y.device) if cells else y
        held = self._held
        self._kernels.scaled_fp4[tiles, split](
            y, values, held["packed"], scale, held["weight_scale"], held["scale"],
            held.get("bias", y), partial, self._counters, rows, self._n,
            GROUPS=self._k // self._size, SIZE=self._size, BIAS=self._spec.bias, BLOCK_M=block,
            BLOCK_N=config.block_n, BLOCK_K=config.block_k, SPLIT_K=split, GROUP_M=8,
            num_warps=config.warps, num_stages=config.stages, **self._chaining,
        )  # fmt: skip

    def configure(self, block: int, config: LinearConfig) -> None:
        """Use another configuration for so many rows in a tile; a tuner does."""
        self._configs[block] = config

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._held.values())


def packed(values: Tensor) -> Tensor:
    """Return bytes [rows, columns / 2] of floats that come doubled, the even column low."""
    codes = float_codes(values)
    return codes[:, 0::2] | codes[:, 1::2] << 4


def default(rows: int, spec: LinearSpec, facts: DeviceFacts) -> LinearConfig:
    """Choose without measuring, for so many rows of x in a tile."""
    arch = arch_of(facts)
    tiles = -(-spec.out_features // BLOCK_N)
    split = split_of(tiles, spec.in_features, BLOCK_K, 4, facts.compute_units)
    stages = 4 if arch.shared_bytes > 150 * KIB else 3 if rows < 128 else 2
    stages = 2 if arch.backend == "hip" else stages
    return LinearConfig("fp4", BLOCK_N, BLOCK_K, split, 8 if rows > 64 else 4, stages)
