"""Checkpoints of MLX: integers with a scale and a bias by group, or small floats with a scale.

W = scale * q + bias is scale * (q - zero) with a zero point that is no integer, as of GGUF's Q4_K,
so that kernels know the form. `mlx_tensors` makes of the files' tensors those that are named here.
It gives as plain numbers whatever no layer takes packed. Sources: the documentation of MLX's
`quantize`, and the files of mlx-lm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.layers import FLOATS, Share, Storage, TensorSpec, WeightFormat
from hotshoe.loader.sources import TensorSource
from hotshoe.models.composites import text_names
from hotshoe.slots import QuantSpec
from hotshoe_quantization.mlx_tensors import BIASES, CODES, SCALES, Decoded
from hotshoe_quantization.stored import Axis, Pieces, Shape, check_group, finite
from hotshoe_quantization.values import Values

AFFINE = "affine"
BITS, GROUPS = (2, 3, 4, 5, 6, 8), (16, 32, 64, 128)
#: Bits and size of a group of modes that have one of each, and the form in which kernels get them.
FLOAT_MODES = {
    "mxfp4": (4, 32, QuantSpec("fp4_e2m1", "group", 32)),
    "mxfp8": (8, 32, QuantSpec("fp8_e4m3", "group", 32)),
    "nvfp4": (4, 16, QuantSpec("fp4_e2m1", "group", 16)),
}
#: Of an architecture whose norms multiply by 1 + w. MLX has added the 1 to those in its files.
SHIFTED = ("qwen3_next", "qwen3_5")
#: The model's type, beside what config.json says of quantization.
MODEL_TYPE = "model_type"
#: What a path of MLX has where experts have a number, and what layers call experts' matrices.
_EXPERT = re.compile(r"\.(?:switch_mlp|experts(?:\.\d+)?)\.")
_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


@dataclass(frozen=True, slots=True)
class Packing:
    """How one matrix is stored.

    Attributes:
        mode: "affine", or one of `FLOAT_MODES`.
        bits: Of a number in the file.
        size: Of a group.
    """

    mode: str
    bits: int
    size: int

    @property
    def form(self) -> QuantSpec:
        """The form in which kernels get it; two and three bits are some of four."""
        if self.mode != AFFINE:
            return FLOAT_MODES[self.mode][2]
        held, bits = ("int8", self.bits) if self.bits > 4 else ("int4", None)
        bits = None if bits == 8 else bits
        few = tuple(range(4)) if self.bits == 2 else None
        return QuantSpec(held, "group", self.size, symmetric=False, bits=bits, values=few)


class MlxFormat(WeightFormat):
    """See `hotshoe.layers.WeightFormat`.

    Args:
        usual: How matrices are stored; None if none is quantized.
        others: How some are, by their names; None for plain numbers.
        shifted: The model's norms multiply by 1 + w.
    """

    online = False
    by_expert = True

    def __init__(
        self, usual: Packing | None, others: Mapping[str, Packing | None], shifted: bool = False
    ) -> None:
        self._usual, self._others, self._shifted = usual, others, shifted
        #: Matrices that are quantized; None while nobody knows.
        self._held: frozenset[str] | None = None
        #: Forms of matrices that are multiplied together with some of another form.
        self._joined: dict[str, QuantSpec] = {}
        self._kept: set[str] = set()
        self.survey, self.unpack = self._survey, self._unpack
        self.join, self.decode = self._join, self._decode

    def packing(self, layer: str) -> Packing | None:
        """Return how a matrix of the file is stored that has scales."""
        return self._others.get(key_of(layer), self._usual)

    def keeps(self, layer: str) -> bool:
        """Tell whether some layer takes a matrix packed."""
        return key_of(layer) in self._kept

    def storage(self, layer: str, shape: Shape) -> Storage | None:
        """Return integers with zero points, or floats; None where the file has no scales."""
        key, packing = key_of(layer), self.packing(layer)
        if packing is None or (self._held is not None and key not in self._held):
            return None
        check_group(layer, shape[1], packing.size)
        return Storage(self._joined.get(key, packing.form))

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return numbers and scales, and biases of integers."""
        packing = self.packing(layer)
        assert packing is not None, "asked only where there is a storage"
        fp8 = packing.form.format == "fp8_e4m3"
        numbers = frozenset({torch.float8_e4m3fn if fp8 else torch.int8})
        groups = Axis(1, packing.size).spec(layer, shape, share, FLOATS)
        codes = Axis().spec(layer, shape, share, numbers)
        if packing.bits < 8:
            mask = (1 << packing.bits) - 1
            codes = replace(codes, drawn=lambda values: values & mask)
        self._kept.add(key_of(layer))
        found = {CODES: codes, SCALES: groups}
        return found if packing.form.symmetric else found | {BIASES: groups}

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Check scales, and give joined matrices groups of one size."""
        made = {name: tensors[name] for name in tensors if name == "bias"}
        made["weight"] = list(tensors[CODES])
        made["weight_scale"] = finite(layer, "scales", tensors[SCALES])
        if BIASES in tensors:
            biases = finite(layer, "biases", tensors[BIASES])
            stored = zip(made["weight"], made["weight_scale"], biases, strict=True)
            parts = [_from_zero(*part) for part in stored]
            for i, name in enumerate(("weight", "weight_scale", "weight_zero_point")):
                made[name] = [part[i] for part in parts]
        form = self._form(layer)
        if (form.format, form.group_size) == ("fp4_e2m1", 16):
            made["weight_global_scale"] = [torch.ones(1) for _ in tensors[CODES]]
        for name in ("weight_scale", "weight_zero_point"):
            if name in made:
                made[name] = [
                    _finer(part, codes.shape[1] // (form.group_size or 1))
                    for part, codes in zip(made[name], tensors[CODES], strict=True)
                ]
        return made

    def _form(self, layer: str) -> QuantSpec:
        packing = self.packing(layer)
        assert packing is not None, "asked only where there is a storage"
        return self._joined.get(key_of(layer), packing.form)

    def _survey(self, names: Iterable[str]) -> None:
        ending = ".scales"
        self._held = frozenset(key_of(n.removesuffix(ending)) for n in names if n.endswith(ending))

    def _unpack(self, layer: str) -> None:
        self._kept.discard(key_of(layer))

    def _join(self, layers: Sequence[str]) -> None:
        """Give matrices of integers the form of most bits and smallest groups among them."""
        keys = [key_of(layer) for layer in layers]
        found = [self.packing(layer) for layer in layers]
        packings = [one for one in found if one is not None and one.mode == AFFINE]
        held = self._held is None or self._held.issuperset(keys)
        if held and len(packings) == len(layers):
            size = min(one.size for one in packings)
            form = Packing(AFFINE, max(one.bits for one in packings), size).form
            self._joined |= dict.fromkeys(keys, form)

    def _decode(self, source: TensorSource) -> TensorSource:
        return Decoded(source, self.packing, self.keeps, self._shifted)


def key_of(name: str) -> str:
    """Return what is equal of a path of MLX and the name that a layer has; of experts no number."""
    name = _EXPERT.sub(".experts.", str(text_names(name)))
    block, _, part = name.rpartition(".")
    return f"{block}.{_PARTS.get(part, part)}" if block.endswith(".experts") else name


def _from_zero(codes: Tensor, scales: Tensor, biases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return integers, scales and zero points of integers, scales and biases.

    A group whose numbers are all one has any scale, however small. Then the number itself is its
    zero point, which keeps every zero point within what floats of few bits hold.
    """
    groups = codes.view(*scales.shape, -1)
    low, high = groups.amin(2), groups.amax(2)
    zeros = -biases / scales
    single = (low == high) | (scales == 0) | ~zeros.isfinite()
    if bool(single.any()):
        number = scales * low + biases
        codes = groups.masked_fill(single[..., None], 0).flatten(1)
        scales, zeros = scales.masked_fill(single, 1.0), zeros.where(~single, -number)
    return codes, scales, zeros


def _finer(groups: Tensor, count: int) -> Tensor:
    """Return the numbers of groups for so many groups, of which several had the same."""
    return groups.repeat_interleave(count // groups.shape[1], 1)


def read(config: Mapping[str, Any]) -> MlxFormat:
    """Read MLX's `quantization`; without `bits` and `mode` nothing is quantized.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config, "quantization")
    usual = _packing(values)
    others: dict[str, Packing | None] = {}
    for path, own in config.items():
        if own is False:
            others[key_of(path)] = None
        elif isinstance(own, Mapping):
            others[key_of(path)] = _packing(Values(own, f"quantization.{path}"))
        elif own is True:
            others[key_of(path)] = usual
    kind = config.get(MODEL_TYPE)
    return MlxFormat(usual, others, isinstance(kind, str) and kind.startswith(SHIFTED))


def _packing(values: Values) -> Packing | None:
    if values.get("bits") is None and values.get("mode") is None:
        return None
    mode = values.one_of((AFFINE, *FLOAT_MODES), "mode", default=AFFINE)
    if mode == AFFINE:
        bits = values.one_of(BITS, "bits", default=4)
        return Packing(mode, bits, values.one_of(GROUPS, "group_size", default=64))
    bits, size, _ = FLOAT_MODES[mode]
    values.one_of((bits,), "bits", default=bits)
    values.one_of((size,), "group_size", default=size)
    return Packing(mode, bits, size)
