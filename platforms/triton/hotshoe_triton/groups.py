"""Candidate `groups` of slot `linear`: numbers of four or eight bits with scales by group or row.

Integers and 4-bit floats come with their scales, whoever packed them, and are packed once more, for
the kernels. x stays as it is. Few rows meet words that become numbers in registers; for many, the
weight becomes plain numbers in memory for as long as the library multiplies by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    SCALE_BITS,
    LinearSpec,
    Quantized,
    QuantSpec,
    Verdict,
    linear_bytes,
    renewed,
)
from hotshoe.slots.reference import linear as reference
from hotshoe_triton.device import DTYPES, arch_of, chaining, judge, pairs_bits
from hotshoe_triton.tuning import LinearConfig, split_of

BITS = {"int4": 4, "int8": 8, "fp4_e2m1": 4}
#: Sizes of 4-bit floats, doubled, in the order of their bits.
DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)
#: Columns of the narrowest group, of which a span is one or two.
NARROWEST = 32
#: Columns of a narrower group than that; a span is four of them.
STRIP = 16
#: The largest zero point that the lowest bits of a scale hold.
MOST = 31
#: What numbers times their scale of 8 bits are multiplied by; see `kernels.groups`.
BYTE_FACTOR = 256.0
#: Columns of a group that is a whole row, whatever its length.
WHOLE_ROW = 1 << 30
#: Rows of x in a tile, those of NVIDIA's instructions alone, and larger ones of families whose
#: registers hold them. More rows than the last are multiplied by the library.
ROW_BLOCKS = (16, 32, 64)
LOW_BLOCKS = {"cuda": (8,)}
LARGE_BLOCKS = {"hopper": (128,)}


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and the form of the weight."""
    weight = spec.weight or QuantSpec("", "")
    what = f"weights {spec.weight}" if spec.weight else "plain weights"
    bits, size = BITS.get(weight.format, 0), weight.group_size or 0
    chunk = chunk_of(bits or 16, size)
    by_group = weight.granularity == "group"
    whole = size % NARROWEST == 0 and (chunk % size == 0 or size % chunk == 0) if size else False
    whole = whole or size == STRIP
    refusals = {
        f"{what} are not int4 or int8 or 4-bit floats with scales by group or row": not bits
        or weight.granularity not in ("group", "channel")
        or bool(weight.packing)
        or weight.dynamic,
        "x is not quantized here": spec.activation is not None,
        "zero points are not made of plain weights": weight.online and not weight.symmetric,
        "4-bit floats are not made here": weight.online and weight.format == "fp4_e2m1",
        f"groups of {size} do not divide {spec.in_features} inputs, or are neither a multiple of "
        f"{chunk} columns, nor {NARROWEST}, nor {STRIP}": by_group
        and not (whole and spec.in_features % size == 0),
        f"results of type {spec.out_dtype} are not written": (spec.out_dtype or spec.dtype)
        not in DTYPES,
    }
    return judge(facts, spec.dtype, refusals)


def weight_bytes(spec: LinearSpec, facts: DeviceFacts) -> int:
    """Return the least that a matrix takes here: zero points of four bits may lie in its scales."""
    assert spec.weight is not None
    inside = spec.weight.format == "int4" and spec.dtype != "float32"
    scale_bits = 8 if scaled_by_bytes(spec.weight) else SCALE_BITS
    return linear_bytes(spec, None, scale_bits, 0 if inside else SCALE_BITS)


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels import groups

        assert spec.weight is not None
        self._kernels, self._spec, self._facts, self._quant = groups, spec, facts, spec.weight
        self._n, self._k = spec.out_features, spec.in_features
        self._bits = BITS[spec.weight.format]
        self._chunk = chunk_of(self._bits, spec.weight.group_size or 0)
        self._span = self._chunk * self._bits // 16
        self._chunks = -(-self._k // self._chunk)
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._y_dtype: torch.dtype = getattr(torch, spec.out_dtype or spec.dtype)
        self._words = torch.empty(0, dtype=torch.int16)
        self._scale = torch.empty(0)
        self._zero: Tensor | None = None
        self._floats = spec.weight.format == "fp4_e2m1"
        self._zeros = "none" if self._floats else "half"
        if scaled_by_bytes(spec.weight):
            self._zeros = "bytes"
        self._order: Tensor | None = None
        self._bias: Tensor | None = None
        self._counters = torch.empty(0)
        self._blocks = row_blocks(facts)
        self._configs = {rows: default(rows, spec, self._chunk, facts) for rows in self._blocks}

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        device, quant = self._facts.device, self._quant
        parts = [part.to(device) for part in tensors["weight"]]
        if "weight_scale" in tensors:
            scales = [part.to(device) for part in tensors["weight_scale"]]
        else:
            made = [reference.quantize_weight(part, quant) for part in parts]
            parts, scales = [values for values, _ in made], [scale for _, scale in made]
        half = torch.full((), 1 << (self._bits - 1), dtype=torch.int32, device=device)
        # Writers differ in whether values begin at 0; only their distance from zero counts.
        shifts = [half if quant.symmetric else torch.where(p.amin() < 0, half, 0) for p in parts]
        if self._floats:
            parts, shifts = [float_codes(part) for part in parts], [half * 0] * len(parts)
        if self._zeros == "bytes":
            wholes = [whole.to(device) for whole in tensors["weight_global_scale"]]
            parts, scale = self._by_bytes(parts, scales, wholes)
        else:
            scale = self._by_group(parts, scales).float()
        words = torch.cat([self._packed(p, s) for p, s in zip(parts, shifts, strict=True)], 1)
        if not quant.symmetric:
            zeros = [
                zero.to(device) + shift
                for zero, shift in zip(tensors["weight_zero_point"], shifts, strict=True)
            ]
            scale = self._with_zeros(scale, self._by_group(parts, zeros))
        self._scale = renewed(self._scale, scale)
        self._words = renewed(self._words, words)
        if quant.permuted:
            self._order = renewed(self._order, tensors["weight_order"][0].to(device).int())
        if self._spec.bias:
            bias = torch.cat(list(tensors["bias"])).to(device, self._dtype)
            self._bias = renewed(self._bias, bias)
        if not self._counters.numel():
            self._counters = torch.zeros(self._n, dtype=torch.int32, device=device)

    def _packed(self, values: Tensor, shift: Tensor) -> Tensor:
        """Return words [chunks, rows, span] of integers [rows, in_features]."""
        missing = self._chunks * self._chunk - self._k
        whole = torch.nn.functional.pad(values, (0, missing))
        places = whole.view(len(values), self._chunks, -1, self._span)
        words = torch.zeros_like(places[:, :, 0], dtype=torch.int32)
        for place in range(places.shape[2]):
            words |= (places[:, :, place].int() + shift) << self._bits * place
        return words.to(torch.int16).transpose(0, 1).contiguous()

    def _by_bytes(
        self, codes: Sequence[Tensor], scales: Sequence[Tensor], wholes: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Return codes, and scales of 8 bits, four in a word; keep what rows are multiplied by."""
        made = [byte_scales(*part) for part in zip(codes, scales, wholes, strict=True)]
        self._zero = renewed(self._zero, torch.cat([factor * BYTE_FACTOR for *_, factor in made]))
        bits = torch.cat([bits for _, bits, _ in made])
        missing = self._chunks * self._chunk // STRIP - bits.shape[1]
        places = torch.nn.functional.pad(bits, (0, missing))
        places = places.view(self._n, self._chunks, -1, self._span // STRIP).int()
        at = torch.arange(0, 32, 8, dtype=torch.int32, device=bits.device)[:, None]
        words = (places << at).sum(2, dtype=torch.int32)
        return [part for part, *_ in made], words.flatten(1).T.contiguous()

    def _with_zeros(self, scale: Tensor, zero: Tensor) -> Tensor:
        """Return scales whose lowest five bits are the zero points, or keep these apart.

        The bits are less than 1/100 of what numbers of 16 bits lose by their own rounding.

        Raises:
            CheckpointError: Zero points were kept otherwise before; nothing was written.
        """
        exact = self._dtype == torch.float32 or self._bits == 8 or zero.is_floating_point()
        fit = not exact and (zero.is_meta or (zero.amin() >= 0 and zero.amax() <= MOST))
        form = "inside" if fit else "apart"
        if self._words.numel() and form != self._zeros:
            raise CheckpointError(
                f"new zero points kept {form} cannot replace those kept {self._zeros}, as kernels "
                "read them otherwise; start the engine with the new weights"
            )
        self._zeros = form
        if not fit:
            self._zero = renewed(self._zero, zero.float())
            return scale
        bits = (scale.view(torch.int32) + (MOST >> 1)) & ~MOST
        return (bits | zero.int()).view(torch.float32)

    def _by_group(self, parts: Sequence[Tensor], found: Sequence[Tensor]) -> Tensor:
        """Return scales or zero points [groups, out_features]."""
        pairs = zip(found, parts, strict=True)
        return torch.cat(
            [reference.by_row(one, len(part), self._quant) for one, part in pairs]
        ).T.contiguous()

    def state(self) -> dict[str, Tensor]:
        if not self._words.numel():
            return {}
        held = {
            "packed": self._words,
            "weight_scale": self._scale,
            "weight_global_scale" if self._zeros == "bytes" else "weight_zero_point": self._zero,
            "weight_order": self._order,
            "bias": self._bias,
        }
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def _form(self) -> dict[str, object]:
        """Return the constants of both kernels."""
        return {
            "GROUP": self._quant.group_size or WHOLE_ROW,
            "BITS": self._bits,
            "ZEROS": self._zeros,
            "SPAN": self._span,
        }

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        assert isinstance(x, Tensor)
        rows = len(x)
        if self._order is not None:
            x = x.index_select(1, self._order)
        if rows > self._blocks[-1]:
            y = torch.nn.functional.linear(x, self._plain(), self._bias)
            return y.to(self._y_dtype)
        y = torch.empty((rows, self._n), dtype=self._y_dtype, device=x.device)
        if rows:
            self._few(y, x)
        return y

    def _few(self, y: Tensor, x: Tensor) -> None:
        rows = len(x)
        block = next(size for size in self._blocks if rows <= size)
        config = self._configs[block]
        grid = (-(-self._n // config.block_n), config.split_k)
        cells = grid[0] * grid[1] * config.block_n * block if config.split_k > 1 else 0
        partial = torch.empty(cells, dtype=torch.float32, device=y.device) if cells else y
        bias = self._words if self._bias is None else self._bias
        lanes = {"LANES": config.block_k // self._chunk} if config.kernel == "by_lanes" else {}
        getattr(self._kernels, config.kernel)[grid](
            y, x, *self._held(), bias, partial, self._counters, rows, self._n, self._k,
            x.stride(0), BIAS=self._bias is not None, PAIRED=self._paired(), BLOCK_M=block,
            BLOCK_N=config.block_n, SPLIT_K=config.split_k, STAGES=config.stages,
            num_warps=config.warps, **lanes, **self._form(), **chaining(self._facts),
        )  # fmt: skip

    def _held(self) -> tuple[Tensor, ...]:
        """Return words, scales and zero points as kernels take them."""
        return self._words, self._scale, self._scale if self._zero is None else self._zero

    def _paired(self) -> bool:
        """Whether numbers are made two at a time."""
        return self._bits == 4 and self._dtype.itemsize == 2 and pairs_bits(self._facts)

    def _plain(self) -> Tensor:
        """Return the weight [out_features, in_features] as numbers of x's type."""
        out = torch.empty((self._n, self._k), dtype=self._dtype, device=self._facts.device)
        block = 64
        self._kernels.plain[(-(-self._n // block), self._chunks)](
            out, *self._held(), self._n, self._k, BLOCK_N=block, num_warps=4, **self._form()
        )
        return out

    def configure(self, block: int, config: LinearConfig) -> None:
        """Use another configuration for so many rows in a tile; a tuner does."""
        self._configs[block] = config

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state().values())


def float_codes(values: Tensor) -> Tensor:
    """Return the four bits of floats that come doubled, as uint8."""
    sizes = torch.searchsorted(torch.tensor(DOUBLED, device=values.device), values.abs().long())
    return sizes.to(torch.uint8) | (values < 0).to(torch.uint8) << 3


def scaled_by_bytes(weight: QuantSpec) -> bool:
    """Tell whether scales are 8-bit floats, with one more for all."""
    return (weight.format, weight.granularity, weight.group_size) == ("fp4_e2m1", "group", STRIP)


def chunk_of(bits: int, group: int) -> int:
    """Return the columns of a chunk; a group of another size than `STRIP`, if rows have some, is no
    narrower than a span."""
    wide = group == STRIP or group % (2 * NARROWEST) == 0
    return (2 * NARROWEST if wide else NARROWEST) * 16 // bits


def byte_scales(codes: Tensor, scale: Tensor, whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes and scales as kernels take them, and what each row is multiplied by.

    Kernels read no sign of a scale, so its codes have it, and no NaN, so the row has it.

    Args:
        codes: [rows, columns] uint8, see `float_codes`.
        scale: [rows, groups] float32, half of 8-bit floats times `whole`.
        whole: One number.

    Returns:
        Codes, [rows, groups] uint8, and [rows] float32.
    """
    whole = whole.float().reshape(1)
    stored = stored_scale(scale, whole, STRIP)
    signs = (stored.view(torch.uint8) >> 7 << 3).repeat_interleave(STRIP, 1)
    known = stored.float().isfinite().all(1) & whole.isfinite()
    return codes ^ signs, stored.view(torch.uint8) & 127, torch.where(known, whole, torch.nan)


def stored_scale(scale: Tensor, whole: Tensor, size: int) -> Tensor:
    """Return what times `whole` is twice `scale`, which was made of it, in the stored type.

    Both roundings of float32 are less than 2^-18 of a step of eight bits.
    """
    share = 2 * scale.float() / torch.where(whole == 0, 1.0, whole)
    if size == STRIP:
        return share.to(torch.float8_e4m3fn)
    return (share.view(torch.int32) >> 23).to(torch.uint8)


def row_blocks(facts: DeviceFacts) -> tuple[int, ...]:
    """Return the rows of x that a tile may have, ascending."""
    arch = arch_of(facts)
    return LOW_BLOCKS.get(arch.backend, ()) + ROW_BLOCKS + LARGE_BLOCKS.get(arch.family, ())


def default(rows: int, spec: LinearSpec, chunk: int, facts: DeviceFacts) -> LinearConfig:
    """Choose without measuring, for so many rows of x in a tile and columns in a chunk."""
    arch = arch_of(facts)
    if rows <= 16 and arch.backend == "cuda" and spec.dtype != "float32":
        return by_lanes(spec, chunk, facts)
    wide = arch.family in LARGE_BLOCKS and rows > 32
    block_n, warps = (128, 8) if wide else (64 if arch.backend == "cuda" else 32, 4)
    tiles = -(-spec.out_features // block_n)
    if rows > 32:  # partial sums are large: no more programs than units
        splits = (n for n in (4, 2) if tiles * n <= facts.compute_units)
        split = next((n for n in splits if spec.in_features >= n * chunk), 1)
    else:
        split = split_of(tiles, spec.in_features, chunk, 4, facts.compute_units)
    itemsize = 4 if spec.dtype == "float32" else 2
    assert spec.weight is not None
    word_bytes = block_n * chunk * BITS[spec.weight.format] // 8
    stage_bytes = word_bytes + rows * chunk * itemsize
    most = 3 if arch.backend == "cuda" else 2
    stages = max(1, min(most, arch.shared_bytes // stage_bytes))
    return LinearConfig("grouped", block_n, chunk, split, warps, stages)


def by_lanes(spec: LinearSpec, chunk: int, facts: DeviceFacts) -> LinearConfig:
    """Choose for few rows: four lanes, and two programs of a tile where tiles are few."""
    split = 1 if spec.out_features > 32 * facts.compute_units else 2
    fit = split if spec.in_features >= 4 * split * chunk else 1
    return LinearConfig("by_lanes", 32, 4 * chunk, fit, 4, 3)
