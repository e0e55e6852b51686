"""Bytes that a step reads of what slots keep, from their specifications: of caches, states and the
matrices of whole layers. Free of torch.
"""

from __future__ import annotations

from typing import Any

from hotshoe.slots.block_choice import BlockIndexerSpec
from hotshoe.slots.compressed import CompressedAttentionSpec
from hotshoe.slots.hyper import HyperConnectionSpec
from hotshoe.slots.layer_specs import DecoderLayerSpec
from hotshoe.slots.packed import PackedAttentionSpec
from hotshoe.slots.sizes import TYPE_BITS, linear_bytes
from hotshoe.slots.specs import AttentionSpec, IndexerSpec, MlaAttentionSpec, RotaryAndCacheSpec
from hotshoe.slots.state_specs import (
    GatedDeltaSpec,
    RgLruSpec,
    SelectiveScanSpec,
    ShortConvSpec,
    StateSpaceSpec,
)


def size_of(spec: Any) -> int:
    """Return the bytes of a number of the specification's type."""
    return TYPE_BITS[spec.dtype] // 8


def attended_bytes(spec: AttentionSpec, length: int) -> int:
    """Return the bytes of the keys and values that one query sees."""
    seen = min(length, spec.window or length)
    both = spec.head_dim + spec.value_dim
    row = both * TYPE_BITS.get(spec.kv_dtype, 8) // 8 + 8 * (spec.kv_scales == "token")
    return seen * spec.num_kv_heads * row


def packed_bytes(spec: PackedAttentionSpec, length: int) -> int:
    """Return the bytes of the keys and values that one query sees."""
    seen = length if spec.window is None else min(length, 2 * spec.window + 1)
    return 2 * seen * spec.num_kv_heads * spec.head_dim * size_of(spec)


def row_of(spec: RotaryAndCacheSpec) -> int:
    """Return the channels of a token's queries, keys and values."""
    keys = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
    return keys + spec.num_kv_heads * spec.value_dim


def latent_bytes(spec: MlaAttentionSpec, length: int) -> int:
    """Return the bytes of the cache rows that one query sees, and of the matrix."""
    return length * spec.row.nbytes + linear_bytes(spec.up)


def key_bytes(spec: IndexerSpec | BlockIndexerSpec, length: int) -> int:
    """Return the bytes of the keys that one query is compared with."""
    return length * spec.row.nbytes


def stream_bytes(spec: HyperConnectionSpec, length: int) -> int:
    """Return the bytes of the matrix, and of streams that are read twice and written once."""
    numbers = spec.count * spec.hidden_size
    return 4 * spec.outputs * numbers + 3 * numbers * size_of(spec)


def entry_bytes(spec: CompressedAttentionSpec, length: int) -> int:
    """Return the bytes of the rows and entries that one query sees."""
    entries = 0 if spec.group is None else min(length // spec.group, spec.top_k or length)
    return (min(length, spec.window) + entries) * spec.row.nbytes


def state_bytes(
    spec: StateSpaceSpec | SelectiveScanSpec | RgLruSpec | GatedDeltaSpec, state_size: int
) -> int:
    """Return the bytes of what one sequence carries on: `state_size` entries a channel."""
    state = spec.inner_size * state_size * TYPE_BITS[spec.state_dtype]
    return conv_bytes(spec) + state // 8


def conv_bytes(
    spec: StateSpaceSpec | SelectiveScanSpec | RgLruSpec | ShortConvSpec | GatedDeltaSpec,
) -> int:
    """Return the bytes of the inputs that a convolution carries on."""
    return (spec.conv_width - 1) * spec.conv_size * TYPE_BITS[spec.conv_dtype] // 8


def layer_bytes(spec: DecoderLayerSpec, length: int) -> int:
    """Return the bytes of a layer's matrices, and of the keys and values that one query sees."""
    return sum(map(linear_bytes, spec.matrices.values())) + attended_bytes(spec.attention, length)
