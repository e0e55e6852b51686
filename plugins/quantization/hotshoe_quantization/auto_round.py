"""Checkpoints of AutoRound: forms of AWQ, GPTQ and compressed-tensors, and which layer has which.

Source: the documentation of AutoRound, and what it exports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hotshoe_quantization.elements import MXFP8
from hotshoe_quantization.four_bits import awq, columns_in_order, gptq
from hotshoe_quantization.fp4 import COMPRESSED, Fp4
from hotshoe_quantization.stored import Scheme, StoredFormat
from hotshoe_quantization.values import Values, holds, searches

PACKED = "auto_round:llm_compressor"
#: Layouts of integers; the first adds 1 to zero points.
INTEGERS = {
    "auto_round:auto_gptq": partial(gptq, offset=1),
    "auto_round:gptqmodel": partial(gptq, offset=0),
    "auto_round": partial(gptq, offset=0),
    "auto_round:auto_awq": awq,
}
#: Floats, by the beginning of their name and their bits.
FLOATS: dict[tuple[str, int], Scheme] = {
    ("mx_fp", 4): COMPRESSED["mxfp4-pack-quantized"],
    ("mx_fp", 8): MXFP8,
    ("nv_fp", 4): COMPRESSED["nvfp4-pack-quantized"],
}
UNUSED = (r"\.g_idx$", r"\.input_global_scale$")
#: So many bits are plain numbers.
PLAIN = (16, 32)


def read(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of AutoRound.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    if values.get("rotation_config"):
        values.refuse("rotation_config", "is not read: x is not rotated")
    packing = values.one_of((*INTEGERS, PACKED), "packing_format", default="auto_round:auto_gptq")
    scheme = _scheme(values, packing)
    changes = {
        name: _scheme(own.over(values), packing)
        for name, own in values.objects("extra_config").items()
    }
    blocks = tuple(_blocks(values.get("block_name_to_quantize", "to_quant_block_names")))
    kept = ("lm_head", *values.names("modules_to_not_convert"))

    def choose(layer: str) -> Scheme | None:
        if layer in changes:
            return changes[layer]
        outside = blocks and not any(f"{layer}.".startswith(f"{block}.") for block in blocks)
        if outside or holds(kept, layer):
            return None
        found = (n for n in changes if searches(n, layer, "quantization_config.extra_config"))
        return changes.get(next(found, ""), scheme)

    return StoredFormat(choose, UNUSED, needless=columns_in_order(choose))


def _blocks(names: object) -> Iterator[str]:
    """Yield where quantized layers are: of names with commas between, or of lists of them."""
    if isinstance(names, str):
        yield from (name.strip() for name in names.split(","))
    elif isinstance(names, list):
        for name in names:
            yield from _blocks(name)


def _scheme(values: Values, packing: str) -> Scheme | None:
    """Return how layers of such values are stored; None for plain numbers."""
    bits, kind = values.get("bits"), values.get("data_type", default="int")
    if bits in PLAIN:
        return None
    if packing != PACKED:
        values.one_of(("int",), "data_type", default="int")
        values.one_of(PLAIN, "act_bits", default=16)
        return INTEGERS[packing](values)
    found = FLOATS.get((str(kind)[:5], values.one_of((4, 8), "bits")))
    if found is None:
        values.refuse("data_type", f"{kind!r} of {bits!r} bits is not read in {PACKED}")
    values.one_of((16 if "nv" in str(kind) else 32,), "group_size")
    return replace(found, rounds=values.get("act_bits") == 4) if isinstance(found, Fp4) else found
