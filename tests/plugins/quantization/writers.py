"""Writes checkpoints as their formats' descriptions say, and the plain numbers they stand for.

Independent of the readers under test: integers are found by searching for the nearest, words are
put together bit by bit. Not a test module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

#: Given a matrix, the tensors that store it, by the last part of their names, and W in float32.
Quantizer = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Written:
    """A way to store a model.

    Attributes:
        config: Its quantization_config.
        quantizers: By layer; the first whose key is within a layer's name counts.
    """

    config: dict[str, Any]
    quantizers: Mapping[str, Quantizer]
    keep: tuple[str, ...] = field(default=("lm_head",))


def write(source: Path, target: Path, written: Written) -> tuple[Path, Path]:
    """Write a plain model's quantized form, and the plain model that it stands for."""
    stored, plain = target / "stored", target / "plain"
    tensors, quantized, dense = load_file(source / "model.safetensors"), {}, {}
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        quantize = next((q for key, q in written.quantizers.items() if key in layer), None)
        if tensor.dim() != 2 or "embed" in layer or any(k in layer for k in written.keep):
            quantize = None
        if quantize is None:
            quantized[name] = dense[name] = tensor
            continue
        parts, dense[name] = quantize(tensor)
        quantized |= {
            f"{layer}.{part}": value.clone().contiguous() for part, value in parts.items()
        }
    config = json.loads((source / "config.json").read_text())
    for path, values, more in (
        (stored, quantized, {"quantization_config": written.config}),
        (plain, dense, {}),
    ):
        path.mkdir(parents=True)
        save_file(values, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(config | more))
    return stored, plain


def words(values: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Pack the last axis of unsigned integers into int32 words, the first one lowest."""
    if bits == 3:
        return stream(values, bits)
    count = 32 // bits
    array = values.numpy().astype(np.uint64)
    array = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % count)])
    runs = array.reshape(*array.shape[:-1], -1, count)
    packed = np.zeros(runs.shape[:-1], dtype=np.uint64)
    for place in range(count):
        packed |= runs[..., order[place] if order else place] << np.uint64(bits * place)
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32))


def stream(values: Tensor, bits: int) -> Tensor:
    """Pack the last axis as one number, whose lowest bits are the first integer."""
    rows = []
    for row in values.reshape(-1, values.shape[-1]).tolist():
        whole = sum(value << (bits * i) for i, value in enumerate(row))
        rows.append(list(whole.to_bytes(len(row) * bits // 8, "little")))
    octets = torch.tensor(rows, dtype=torch.uint8)
    return octets.view(torch.int32).view(*values.shape[:-1], -1)


def integers(
    weight: Tensor, bits: int, groups: Tensor, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Quantize each row by groups of its columns.

    Args:
        groups: [columns], the group of each.

    Returns:
        Unsigned values [rows, columns], scales and zero points [rows, groups], and W in float32.
    """
    rows, top = weight.shape[0], (1 << bits) - 1
    count = int(groups.max()) + 1
    scale, zero = torch.empty(rows, count), torch.full((rows, count), 1 << (bits - 1))
    for g in range(count):
        part = weight[:, groups == g]
        if symmetric:
            scale[:, g] = part.abs().amax(1) / (top // 2)
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scale[:, g] = (high - low) / top
            zero[:, g] = (-low / scale[:, g]).round().int().clamp(0, top)
    scale = scale.half().float()
    wide, shift = scale[:, groups], zero[:, groups]
    values = (weight / wide + shift).round().clamp(0, top).int()
    return values, scale, zero, (values - shift) * wide


def runs_of(columns: int, size: int) -> Tensor:
    return torch.arange(columns) // (columns if size == -1 else size)


def awq(size: int, symmetric: bool = False) -> Quantizer:
    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        runs = runs_of(weight.shape[1], size)
        values, scale, zero, dense = integers(weight, 4, runs, symmetric)
        return {
            "qweight": words(values.T, 4, AWQ_ORDER),
            "qzeros": words(zero.T, 4, AWQ_ORDER),
            "scales": scale.T.half(),
        }, dense

    return quantize


def gptq(
    bits: int, size: int, symmetric: bool, version: int = 1, act_order: bool = False
) -> Quantizer:
    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups = runs_of(weight.shape[1], size)
        if act_order:  # the same for all matrices of the same inputs
            source = torch.Generator().manual_seed(weight.shape[1])
            groups = groups[torch.randperm(len(groups), generator=source)]
        values, scale, zero, dense = integers(weight, bits, groups, symmetric)
        return {
            "qweight": words(values, bits).T,
            "qzeros": words(((zero - int(version == 1)) % (1 << bits)).T, bits),
            "scales": scale.T.half(),
            "g_idx": groups.int(),
        }, dense

    return quantize


def packed(bits: int, size: int, symmetric: bool, act_order: bool = False) -> Quantizer:
    """compressed-tensors, pack-quantized."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups = runs_of(weight.shape[1], size)
        if act_order:
            source = torch.Generator().manual_seed(weight.shape[1])
            groups = groups[torch.randperm(len(groups), generator=source)]
        values, scale, zero, dense = integers(weight, bits, groups, symmetric)
        found = {
            "weight_packed": words(values, bits),
            "weight_scale": scale.half(),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            found["weight_zero_point"] = words(zero.T, bits).T
        if act_order:
            found["weight_g_idx"] = groups.int()
        return found, dense

    return quantize


def fp4(size: int, kind: str, x_scale: float | None = None) -> Quantizer:
    """4-bit floats, as "modelopt" or "quark", or as "nvfp4" or "mxfp4" of compressed-tensors.

    "mx" is "mxfp4" whose exponents have their own type. `x_scale` is that of all x.
    """
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        rows = weight.shape[0]
        largest = weight.view(rows, -1, size).abs().amax(2)
        if kind in ("mxfp4", "quark", "mx"):
            exponent = torch.floor(torch.log2(largest)).clamp(-120, 120) - 2
            stored, scale = (exponent + 127).to(torch.uint8), torch.exp2(exponent)
            if kind == "mx":
                stored = stored.view(torch.float8_e8m0fnu)
            parts = {"weight_scale": stored}
        else:
            whole = float(largest.max()) / (6 * 448)
            stored = (largest / 6 / whole).to(torch.float8_e4m3fn)
            scale = stored.float() * whole
            other = {"modelopt": ("weight_scale_2", whole)}
            name, factor = other.get(kind, ("weight_global_scale", 1 / whole))
            parts = {"weight_scale": stored, name: torch.tensor([factor])}
            if x_scale is not None and kind == "modelopt":
                parts["input_scale"] = torch.tensor(x_scale)
            elif x_scale is not None:
                parts["input_global_scale"] = torch.tensor([1 / x_scale])
        wide = scale.repeat_interleave(size, 1)
        codes = ((weight / wide).abs()[..., None] - grid).abs().argmin(-1)
        dense = grid[codes] * weight.sign() * wide
        codes = codes + 8 * (weight < 0)
        octets = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
        name = "weight" if kind in ("modelopt", "quark") else "weight_packed"
        return parts | {name: octets}, dense

    return quantize


def ternary(inverse: bool) -> Quantizer:
    """Values -1, 0 and 1, of which a byte holds one of each quarter of the rows."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scale = weight.abs().mean().view(1)
        values = (weight / scale).round().clamp(-1, 1)
        octets = torch.zeros(len(values) // 4, weight.shape[1], dtype=torch.int32)
        for place, part in enumerate(values.int().chunk(4)):
            octets |= (part + 1) << 2 * place
        stored = 1 / scale if inverse else scale
        return {"weight": octets.to(torch.uint8), "weight_scale": stored}, values * scale

    return quantize


def hqq(bits: int, size: int | None) -> Quantizer:
    """Groups one after the other; a byte holds numbers of each half, or quarter, of them."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups = weight.reshape(-1, size or weight.shape[1])
        low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
        scale = ((high - low) / ((1 << bits) - 1)).half().float()
        zero = (-low / scale).half().float()
        values = (groups / scale + zero).round().clamp(0, (1 << bits) - 1)
        octets = torch.zeros(len(groups) * bits // 8, groups.shape[1], dtype=torch.int32)
        for place, part in enumerate(values.int().chunk(8 // bits)):
            octets |= part << (8 - bits - bits * place)
        return {
            "W_q": octets.to(torch.uint8),
            "scale": scale.half(),
            "zero": zero.half(),
            "shape": torch.tensor(weight.shape),
            "nbits": torch.tensor(bits),
            "axis": torch.tensor(1),
            "packing": torch.tensor([52, 98]).byte(),
            "view_as_float": torch.tensor(False),
        }, ((values - zero) * scale).view(weight.shape)

    return quantize


def eight_bits(
    kind: torch.dtype,
    per: str,
    input_scale: float | None = None,
    scale_name: str = "weight_scale",
    scale_shape: tuple[int, ...] | None = None,
    block: int = 32,
) -> Quantizer:
    """int8 or fp8 by tensor, channel or square block, an element each."""
    top = 127.0 if kind == torch.int8 else 448.0

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        rows, columns = weight.shape
        height, width = {
            "tensor": (rows, columns),
            "channel": (1, columns),
            "block": (block, block),
        }[per]
        scale = torch.empty(-(-rows // height), -(-columns // width))
        wide = torch.empty_like(weight)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                at = np.s_[i * height : (i + 1) * height, j * width : (j + 1) * width]
                scale[i, j] = weight[at].abs().max() / top
                wide[at] = scale[i, j]
        values = weight / wide
        values = (values.round() if kind == torch.int8 else values).to(kind)
        found = {
            "weight": values,
            scale_name: scale if scale_shape is None else scale.view(scale_shape),
        }
        if input_scale is not None:
            found["input_scale"] = torch.tensor([input_scale])
        return found, values.float() * wide

    return quantize


def mxfp8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """OCP's 8-bit floats: an exponent for 32 of them."""
    grouped = weight.unflatten(1, (-1, 32))
    exponent = torch.floor(torch.log2(grouped.abs().amax(2))) - 8
    scale = torch.exp2(exponent)[..., None]
    values = (grouped / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    parts = {"weight": values.flatten(1), "weight_scale": (exponent + 127).to(torch.uint8)}
    return parts, (values.float() * scale).flatten(1)


#: The numbers of NF4, of arXiv:2305.14314 (appendix E), and of FP4 in the order of its codes.
_BELOW = (-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004)
_ABOVE = (0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)
NF4 = (*_BELOW, 0.0, *_ABOVE)
_HALF = (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
FP4 = (*_HALF, *(-number for number in _HALF))


def row_maxima(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """LLM.int8 of bitsandbytes."""
    largest = weight.abs().amax(1)
    values = (weight * 127 / largest[:, None]).round().to(torch.int8)
    parts = {"weight": values, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, values.float() * largest[:, None] / 127


def looked_up(kind: str, size: int = 64, nested: int | None = None) -> Quantizer:
    """Four bits of bitsandbytes: blocks of numbers in rows' order, the first in the high bits."""
    table = torch.tensor(NF4 if kind == "nf4" else FP4)

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        flat = weight.float().flatten()
        scale = torch.stack([block.abs().max() for block in flat.split(size)])
        state: dict[str, Any] = {"quant_type": kind, "blocksize": size, "dtype": "float32"}
        state["shape"] = list(weight.shape)
        parts: dict[str, Tensor] = {"weight.absmax": scale, "weight.quant_map": table}
        if nested is not None:
            offset = float(scale.mean())
            steps = torch.linspace(-1, 1, 256)
            wide = torch.stack([(run - offset).abs().max() for run in scale.split(nested)])
            each = wide.repeat_interleave(nested)[: len(scale)]
            codes = (((scale - offset) / each)[:, None] - steps).abs().argmin(1)
            scale = steps[codes] * each + offset
            parts["weight.absmax"] = codes.to(torch.uint8)
            parts |= {"weight.nested_absmax": wide, "weight.nested_quant_map": steps}
            state |= {"nested_blocksize": nested, "nested_offset": offset}
        each = scale.repeat_interleave(size)[: len(flat)]
        found = ((flat / each)[:, None] - table).abs().argmin(1)
        octets = (16 * found[0::2] + found[1::2]).to(torch.uint8)
        text = json.dumps(state).encode()
        parts["weight"] = octets[:, None]
        parts[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text)).byte()
        return parts, (table[found] * each).view(weight.shape)

    return quantize


def flattened(quantize: Quantizer, zeros: torch.dtype | None = None) -> Quantizer:
    """torchao: a weight's parts under its own name, with zero points of zero where asked."""

    def renamed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, dense = quantize(weight)
        found = {"_weight_qdata": parts["weight"], "_weight_scale": parts["weight_scale"]}
        if zeros is not None:
            zero = torch.zeros_like(parts["weight_scale"], dtype=zeros)
            found["_weight_zero_point"] = parts.get("weight_zero_point", zero).to(zeros)
        return found, dense

    return renamed


def signed_integers(bits: int, size: int, symmetric: bool) -> Quantizer:
    """An element for each integer, about zero."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups = runs_of(weight.shape[1], size)
        values, scale, zero, dense = integers(weight, bits, groups, symmetric)
        half = 1 << (bits - 1)
        return {
            "weight": (values - half).to(torch.int8),
            "weight_scale": scale,
            "weight_zero_point": (zero - half).to(torch.int8),
        }, dense

    return quantize


def signed_nibbles(size: int) -> Quantizer:
    """w4afp8's experts: as torchao's plain integers, without zeros; scales are outputs first."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, dense = signed_integers(4, size, True)(weight)
        codes = parts["weight"].int() % 16
        octets = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8).view(torch.int8)
        scales = parts["weight_scale"]
        found = {"weight": octets, "weight_scale_inv": scales, "input_scale": torch.tensor([0.1])}
        return found, dense

    return quantize


def nibbles(size: int) -> Quantizer:
    """torchao's plain integers of four bits: the even column low, both in two's complement."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        grouped = weight.unflatten(1, (-1, size))
        low, high = grouped.amin(2), grouped.amax(2)
        scale = (high - low) / 15
        zero = low + 8 * scale
        found = ((grouped - zero[..., None]) / scale[..., None]).round().clamp(-8, 7)
        dense = (found * scale[..., None] + zero[..., None]).flatten(1)
        codes = found.flatten(1).int() % 16
        octets = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8).view(torch.int8)
        return {
            "_weight_qdata": octets,
            "_weight_scale": scale.T,
            "_weight_zero_point": zero.T,
        }, dense

    return quantize
