"""Checkpoints of AWQ and GPTQ: integers packed into words, inputs before outputs; pairs in bytes.

Sources: Lin et al. 2023, arXiv:2306.00978, and the packing of AutoAWQ's version "gemm"; Frantar et
al. 2022, arXiv:2210.17323, and the files of AutoGPTQ and GPTQModel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import FLOATS, Share, Storage, TensorSpec
from hotshoe.slots import QuantSpec
from hotshoe_quantization.fp4 import PAIRS
from hotshoe_quantization.stored import (
    WORDS,
    Axis,
    Needless,
    PackedInputs,
    Pieces,
    Scheme,
    Shape,
    StoredFormat,
    check_group,
    check_words,
    finite,
    order_spec,
    ordered,
)
from hotshoe_quantization.unpack import in_order, signed, signed_values, unpack
from hotshoe_quantization.values import Values, holds, matches_regex

#: Bits of GPTQ's integers.
BITS = (2, 3, 4, 8)
#: The group of each column.
ORDER = ".g_idx"
#: Where the i-th of eight neighboring outputs lies in an AWQ word.
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True, slots=True)
class Awq:
    """`qweight` [inputs, outputs / 8], `qzeros` [groups, outputs / 8], `scales`."""

    weight: QuantSpec

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return integers of four bits with zero points."""
        check_group(layer, shape[1], self.weight.group_size)
        check_words(layer, shape[0], 8)
        return Storage(self.weight)

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the three tensors."""
        group = self.weight.group_size
        return {
            "qweight": Axis(8, 1, transposed=True).spec(layer, shape, share, WORDS),
            "qzeros": Axis(8, group, transposed=True).spec(layer, shape, share, WORDS),
            "scales": Axis(1, group, transposed=True).spec(layer, shape, share, FLOATS),
        }

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Unpack, and put outputs first."""
        made = {name: tensors[name] for name in tensors if name == "bias"}
        return made | {
            "weight": [self._outputs_first(words) for words in tensors["qweight"]],
            "weight_zero_point": [self._outputs_first(words) for words in tensors["qzeros"]],
            "weight_scale": [s.T for s in finite(layer, "scales", tensors["scales"])],
        }

    def _outputs_first(self, words: Tensor) -> Tensor:
        values = in_order(unpack(words, 4, 8 * words.shape[1]), AWQ_PLACES)
        return values.T.contiguous().view(torch.int8)


@dataclass(frozen=True, slots=True)
class Gptq(PackedInputs):
    """`qweight` [inputs / n, outputs], `qzeros` [groups, outputs / n], `scales`, `g_idx`.

    Attributes:
        weight: Integers of four or eight bits; of two or three they are some of those of four.
        offset: Added to stored zero points: 1 in the first version of the format.
    """

    offset: int

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the tensors; the columns' groups only where they are out of order."""
        per_word, group = self.per_word, self.weight.group_size
        specs = {
            "qweight": Axis(1, per_word, transposed=True).spec(layer, shape, share, WORDS),
            "qzeros": Axis(per_word, group, transposed=True).spec(layer, shape, share, WORDS),
            "scales": Axis(1, group, transposed=True).spec(layer, shape, share, FLOATS),
        }
        if self.weight.symmetric:
            specs["qzeros"] = replace(specs["qzeros"], drawn=self._middle)
        if self.weight.permuted:
            specs["g_idx"] = order_spec(layer, shape, share, group)
        return specs

    def _middle(self, words: Tensor) -> Tensor:
        """Return zero points, packed, that are the middle of their bits."""
        one = (1 << (self.bits - 1)) - self.offset
        run = sum(one << self.bits * i for i in range(32))  # as many words as a number has bits
        found = [(run >> 32 * i) & 0xFFFFFFFF for i in range(self.bits)]
        numbers = torch.tensor([word - (word >> 31 << 32) for word in found], dtype=words.dtype)
        return numbers[torch.arange(words.shape[-1]) % self.bits].expand_as(words)

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Unpack, and put outputs first."""
        made = {name: tensors[name] for name in tensors if name == "bias"}
        scales = finite(layer, "scales", tensors["scales"])
        made["weight_scale"] = [scale.T for scale in scales]
        weights, zeros = [], []
        for words, stored, scale in zip(tensors["qweight"], tensors["qzeros"], scales, strict=True):
            bits = 32 * stored.shape[1] // scale.shape[1]  # of this one of stacked matrices
            half = 1 << (bits - 1)
            weights.append(signed(unpack(words.T, bits, len(words) * 32 // bits), bits))
            zero = unpack(stored, bits, scale.shape[1]).T.to(torch.int16) + self.offset
            zeros.append(zero % (2 * half) - half)  # 1 less than 0 was stored as the largest
        made["weight"] = weights
        if not self.weight.symmetric:
            made["weight_zero_point"] = zeros
        elif any(bool(zero.any()) for zero in zeros):
            raise CheckpointError(
                f"{layer}.qzeros, or those of a matrix stacked with it, are not the middle of "
                "their bits, though quantization_config says sym (checkpoint_format "
                f"{'gptq' if self.offset else 'gptq_v2'}); correct config.json"
            )
        if self.weight.permuted:
            assert self.weight.group_size is not None
            made |= ordered(layer, made["weight"], tensors["g_idx"], self.weight.group_size)
        return made


@dataclass(frozen=True, slots=True)
class Nibbles:
    """Two integers in a byte, in two's complement and the even column low; scales by group.

    Attributes:
        size: Of a group.
        scale: The name of the scales.
    """

    size: int
    scale: str

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return integers of four bits."""
        check_group(layer, shape[1], self.size)
        return Storage(QuantSpec("int4", "group", self.size))

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return bytes and scales."""
        return {
            "weight": Axis(1, 2).spec(layer, shape, share, PAIRS),
            self.scale: Axis(1, self.size).spec(layer, shape, share, FLOATS),
        }

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Unpack."""
        made = {name: tensors[name] for name in tensors if name == "bias"}
        codes = [unpack(part, 4, 2 * part.shape[1]) for part in tensors["weight"]]
        made["weight"] = [signed(part ^ 8, 4) for part in codes]
        return made | {"weight_scale": finite(layer, self.scale, tensors[self.scale])}


def read_awq(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of AWQ.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    values.one_of(("gemm",), "version", default="gemm")
    values.flag("zero_point", default=True)  # without any, all that are stored are the middle
    scheme = awq(values)
    kept = ("lm_head", *values.names("modules_to_not_convert"))
    return StoredFormat(lambda layer: None if holds(kept, layer) else scheme)


def read_gptq(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of GPTQ.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    version = values.one_of(("gptq", "gptq_v2"), "checkpoint_format", default="gptq")
    values.one_of((False,), "is_marlin_format", default=False)  # packed for one kernel
    offset = int(version == "gptq")
    scheme = gptq(values, offset)
    kept = () if values.flag("lm_head", default=False) else ("lm_head",)
    kept += values.names("modules_to_not_convert")
    inside = _inside(values)
    others = {
        name: None if name.startswith("-:") else gptq(own.over(values), offset)
        for name, own in values.objects("dynamic").items()
    }

    def choose(layer: str) -> Scheme | None:
        for name, other in others.items():
            pattern = name.removeprefix("-:").removeprefix("+:")
            if matches_regex((f"re:{pattern}",), layer, "quantization_config.dynamic"):
                return other
        plain = holds(kept, layer) or not (layer.endswith(inside) or holds(("lm_head",), layer))
        return None if plain else scheme

    return StoredFormat(choose, (r"\.g_idx$",), needless=columns_in_order(choose))


def _inside(values: Values) -> tuple[str, ...]:
    """Return how names of quantized layers of a block end; what every name ends with if all are.

    Optimum writes lists of names, one for each step in which a block was quantized.
    """
    key = "modules_in_block_to_quantize"
    steps = values.get(key)
    if steps is None:
        return ("",)
    if not isinstance(steps, list):
        values.refuse(key, f"must be a list of lists of names, not {steps!r:.100}")
    names = [name for step in steps for name in (step if isinstance(step, list) else [step])]
    if not names or not all(isinstance(name, str) and name for name in names):
        values.refuse(key, f"must be a list of lists of names, not {steps!r:.100}")
    return tuple(f".{name}" for name in names)


def columns_in_order(scheme: Callable[[str], Scheme | None]) -> Needless:
    """Return the groups of columns of weights whose scheme has them in order.

    Args:
        scheme: Says how a layer is stored.
    """

    def has(name: str) -> bool:
        found = scheme(name.removesuffix(ORDER)) if name.endswith(ORDER) else None
        return isinstance(found, Gptq) and not found.weight.permuted

    why = "has columns out of order, though quantization_config has no desc_act"
    return Needless(has, why, _in_order)


def _in_order(groups: Tensor) -> bool:
    """Tell whether columns lie group by group; numbers of other than integers say nothing."""
    if groups.dtype not in (torch.int32, torch.int64) or groups.dim() != 1:
        return False
    size = max(int((groups == 0).sum()), 1)
    return torch.equal(groups, torch.arange(len(groups), dtype=groups.dtype) // size)


def awq(values: Values) -> Awq:
    """Return how layers are stored whose group_size this is."""
    values.one_of((4,), "bits", "w_bit")
    return Awq(_integers(4, values.size("group_size", "q_group_size"), symmetric=False))


def gptq(values: Values, offset: int) -> Gptq:
    """Return how layers are stored whose bits, group_size and sym these are."""
    bits = values.one_of(BITS, "bits")
    weight = _integers(max(bits, 4), values.size("group_size"), values.flag("sym", default=True))
    weight = replace(weight, values=signed_values(bits))
    if values.flag("desc_act", default=False) and weight.group_size is not None:
        weight = replace(weight, permuted=True)
    return Gptq(weight, bits, offset)


def _integers(bits: int, group_size: int | None, symmetric: bool) -> QuantSpec:
    granularity = "channel" if group_size is None else "group"
    return QuantSpec(f"int{bits}", granularity, group_size, symmetric=symmetric)
