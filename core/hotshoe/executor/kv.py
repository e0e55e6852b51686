"""What a worker's KV cache is, as a value, and whether blocks of one may go into another.

Two engines that pass blocks on compare descriptors first, so that what cannot be is refused before
anything moves. Block size and layout may differ, as blocks can be laid out anew; types may where
the conversion is exact or can be stated. Converting itself is `hotshoe.runner.kv`. Free of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from hotshoe.errors import KVTransferError
from hotshoe.slots.specs import KVLayout

#: Pairs of types that blocks may be converted between, and what that costs; "" is exact.
CONVERSIONS = {
    ("bfloat16", "float32"): "",
    ("float16", "float32"): "",
    ("float32", "bfloat16"): "keys and values are rounded to 8 significant bits",
    ("float16", "bfloat16"): "keys and values are rounded to 8 significant bits",
}


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One attention layer's part of a block: [2, block_size * num_kv_heads * head_dim], K first.

    Attributes:
        window: Tokens that it keeps; None keeps all.
    """

    num_kv_heads: int
    head_dim: int
    layout: KVLayout
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVDescriptor:
    """Everything by which the blocks of two caches can differ.

    Attributes:
        model: Digest of what decides the content: config.json with its overrides, quantisation.
        dtype: Element type; none of those that there are comes with scales.
        block_size: Tokens per block.
        layers: In the order in which a step runs them; this rank's heads.
    """

    model: str
    dtype: str
    block_size: int
    layers: tuple[KVLayer, ...]


@dataclass(frozen=True, slots=True)
class KVBlocks:
    """Full blocks that hold a sequence from its first token on, on the host.

    Attributes:
        descriptor: Of the cache that they come from; they are laid out as it says.
        token_ids: What they were computed from, block_size tokens for each block.
        layers: For each layer a tensor [2, num_blocks, block_numel].
    """

    descriptor: KVDescriptor
    token_ids: list[int]
    layers: Sequence[Any]


def check_transfer(source: KVDescriptor, target: KVDescriptor) -> str:
    """Judge whether blocks of `source` can be made blocks of `target`.

    Returns:
        What converting them costs; "" if it is exact.

    Raises:
        KVTransferError: They cannot; it names the field and the remedy.
    """
    if source.model != target.model:
        raise _refusal(
            "model", source.model, target.model, "load the same model with the same settings"
        )
    if len(source.layers) != len(target.layers):
        raise _refusal("layers", len(source.layers), len(target.layers), "load the same model")
    for number, (ours, theirs) in enumerate(zip(source.layers, target.layers, strict=True)):
        where = f"layers[{number}]"
        if ours.num_kv_heads != theirs.num_kv_heads:
            field, remedy = f"{where}.num_kv_heads", "use the same tensor_parallel_size"
            raise _refusal(field, ours.num_kv_heads, theirs.num_kv_heads, remedy)
        if ours.head_dim != theirs.head_dim:
            field = f"{where}.head_dim"
            raise _refusal(field, ours.head_dim, theirs.head_dim, "load the same model")
    if source.dtype == target.dtype:
        return ""
    cost = CONVERSIONS.get((source.dtype, target.dtype))
    if cost is None:
        remedy = f"use kv_cache_dtype {source.dtype} on both sides"
        raise _refusal("dtype", source.dtype, target.dtype, remedy)
    return cost


def _refusal(field: str, source: object, target: object, remedy: str) -> KVTransferError:
    message = f"KV blocks cannot be taken over: {field} is {source} there and {target} here"
    return KVTransferError(f"{message}; {remedy}", field)


@runtime_checkable
class KVWorker(Protocol):
    """What a worker has beside `Worker` if its blocks can be read and written from outside.

    Both happen between steps, in the order of steps.
    """

    def describe_kv(self) -> KVDescriptor:
        """Describe the cache. Only after `allocate_cache`."""
        ...

    def read_kv(self, block_ids: Sequence[Sequence[int]]) -> Sequence[Any]:
        """Return the content of each group's blocks, as in `KVBlocks.layers`."""
        ...

    def write_kv(self, block_ids: Sequence[Sequence[int]], first: int, blocks: KVBlocks) -> None:
        """Fill blocks, converting what is needed.

        Args:
            block_ids: For each group blocks of this cache, in the order of the sequence.
            first: The place in the sequence of the first of them, in blocks of this cache.
            blocks: `check_transfer` has let them pass; they hold enough tokens.
        """
        ...
