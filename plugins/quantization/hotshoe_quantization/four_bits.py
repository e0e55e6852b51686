"""Checkpoints of AWQ and GPTQ: integers packed into words, inputs before outputs.

Sources: Lin et al. 2023, arXiv:2306.00978, and the packing of AutoAWQ's version "gemm"; Frantar et
al. 2022, arXiv:2210.17323, and the files of AutoGPTQ and GPTQModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import FLOATS, Share, Storage, TensorSpec
from hotshoe.slots import QuantSpec
from hotshoe_quantization.stored import (
    WORDS,
    Axis,
    PackedInputs,
    Pieces,
    Scheme,
    Shape,
    StoredFormat,
    check_group,
    check_words,
    finite,
    ordered,
    whole_inputs,
)
from hotshoe_quantization.unpack import in_order, signed, unpack
from hotshoe_quantization.values import Values, holds

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
        weight: Integers of four or eight bits.
        offset: Added to stored zero points: 1 in the first version of the format.
    """

    offset: int

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the tensors; the columns' groups only where they are out of order."""
        per_word, group = 32 // self.bits, self.weight.group_size
        specs = {
            "qweight": Axis(1, per_word, transposed=True).spec(layer, shape, share, WORDS),
            "qzeros": Axis(per_word, group, transposed=True).spec(layer, shape, share, WORDS),
            "scales": Axis(1, group, transposed=True).spec(layer, shape, share, FLOATS),
        }
        if self.weight.permuted:
            whole_inputs(layer, shape, share)
            specs["g_idx"] = TensorSpec((shape[1],), ((slice(None),),), WORDS)
        return specs

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Unpack, and put outputs first."""
        bits, per_word = self.bits, 32 // self.bits
        made = {name: tensors[name] for name in tensors if name == "bias"}
        made["weight"] = [
            signed(unpack(words.T, bits, per_word * len(words)), bits)
            for words in tensors["qweight"]
        ]
        scales = finite(layer, "scales", tensors["scales"])
        made["weight_scale"] = [scale.T for scale in scales]
        half = 1 << (bits - 1)
        zeros = [
            unpack(words, bits, scale.shape[1]).T.to(torch.int16) + (self.offset - half)
            for words, scale in zip(tensors["qzeros"], scales, strict=True)
        ]
        if not self.weight.symmetric:
            made["weight_zero_point"] = zeros
        elif any(bool(zero.any()) for zero in zeros):
            raise CheckpointError(
                f"{layer}.qzeros, or those of a matrix stacked with it, are not the middle of "
                f"{bits} bits, though quantization_config says sym (checkpoint_format "
                f"{'gptq' if self.offset else 'gptq_v2'}); correct config.json"
            )
        if self.weight.permuted:
            assert self.weight.group_size is not None
            made |= ordered(layer, made["weight"], tensors["g_idx"], self.weight.group_size)
        return made


def read_awq(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of AWQ.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    values.one_of((4,), "bits", "w_bit")
    values.one_of(("gemm",), "version", default="gemm")
    values.one_of((True,), "zero_point", default=True)
    size = values.size("group_size", "q_group_size")
    scheme = Awq(_integers(4, size, symmetric=False))
    kept = ("lm_head", *values.names("modules_to_not_convert"))
    return StoredFormat(lambda layer: None if holds(kept, layer) else scheme)


def read_gptq(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of GPTQ.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    bits = values.one_of((4, 8), "bits")
    if values.get("dynamic"):
        values.refuse("dynamic", "is not read: layers must be quantized alike")
    names = ("gptq", "gptq_v2")
    version = values.one_of(names, "checkpoint_format", default="gptq")
    weight = _integers(bits, values.size("group_size"), values.flag("sym", default=True))
    if values.flag("desc_act", default=False) and weight.group_size is not None:
        weight = replace(weight, permuted=True)
    scheme = Gptq(weight, int(version == "gptq"))
    kept = () if values.flag("lm_head", default=False) else ("lm_head",)
    kept += values.names("modules_to_not_convert")
    unused = () if weight.permuted else (r"\.g_idx$",)

    def choose(layer: str) -> Scheme | None:
        return None if holds(kept, layer) else scheme

    return StoredFormat(choose, unused)


def _integers(bits: int, group_size: int | None, symmetric: bool) -> QuantSpec:
    granularity = "channel" if group_size is None else "group"
    return QuantSpec(f"int{bits}", granularity, group_size, symmetric=symmetric)
