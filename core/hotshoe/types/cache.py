"""What a layer keeps of past tokens, and which layers share block tables.

A layer declares a `CacheSpec`. Layers of equal specifications form groups; a group has one block
table per sequence. `hotshoe.types.layout` says how groups share memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

CacheKind: TypeAlias = Literal["full", "window", "latent", "state", "cross", "index"]
#: Which states of a sequence are kept: the latest alone; those at the ends of steps, which end
#: where blocks end; those at the ends of all blocks.
Checkpoints: TypeAlias = Literal["none", "align", "all"]
#: Bytes of an element, by its type's name.
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2} | dict.fromkeys(
    ("float8_e4m3fn", "float8_e5m2", "int8", "uint8"), 1
)
#: 8-bit types of keys and values, by the names that users give them.
QUANTIZED = {"fp8": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "int8": "int8"}
#: Most tokens of a sequence that one step computes where layers have windows. They hold all of them
#: until the step has read them, though the next one reads no more than the window.
WINDOW_STEP = 4096


@dataclass(frozen=True, slots=True)
class CachePart:
    """One array of a block.

    Attributes:
        name: Such as "k", "v", "latent", "conv".
        axes: A letter for each entry of `shape`, outermost first, as in `KVLayout`.
        shape: Of one block.
        dtype: Element type, named as in PyTorch.
        gap: Elements that hold nothing, behind each block.
    """

    name: str
    axes: str
    shape: tuple[int, ...]
    dtype: str
    gap: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of one block, the gap included."""
        return (math.prod(self.shape) + self.gap) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """One layer's cache.

    Attributes:
        kind: "full", "latent" and "index" keep every token; "window" may drop what no later query
            sees; "state" keeps one entry per sequence or checkpoint.
        block_tokens: Tokens that one block stands for.
        parts: What a block holds.
        window: A query at position p reads tokens in (p - window, p]; None reads all.
        tokens_per_entry: Above 1 for caches that keep one entry for several tokens.
        checkpoints: Of kind "state": which states are kept.
        chunked: A query reads its own chunk alone, up to itself; chunks have `window` tokens.
        drafts: Of kind "state": most that it may be behind; its block keeps what they bring.
    """

    kind: CacheKind
    block_tokens: int
    parts: tuple[CachePart, ...]
    window: int | None = None
    tokens_per_entry: int = 1
    checkpoints: Checkpoints = "none"
    chunked: bool = False
    drafts: int = 0

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table.

    Attributes:
        spec: Of each of them.
        layers: Their numbers among all layers with a cache; the i-th has place i of the pool.
        pool: Number of the pool that its blocks come from.
    """

    spec: CacheSpec
    layers: tuple[int, ...]
    pool: int = 0


def full_group(block_tokens: int) -> CacheGroup:
    """Return the only group of a model all of whose layers keep every token."""
    return CacheGroup(CacheSpec("full", block_tokens, ()), ())


def held_blocks(spec: CacheSpec, num_tokens: int, step_tokens: int) -> int:
    """Return the most blocks that a sequence holds at once while it grows to `num_tokens` tokens.

    Args:
        step_tokens: Most tokens of a sequence that one step computes; all of them have blocks.
    """
    blocks = -(-num_tokens // spec.block_tokens)
    if spec.kind == "state":
        # One is read, others are written; with checkpoints, the one that is read stays as it is.
        most = -(-(step_tokens + spec.drafts) // spec.block_tokens)
        # Drafts behind a full block open another, and accepted ones may fill a block in one step.
        further = spec.drafts > 0 and spec.drafts + 1 >= spec.block_tokens
        written = most if spec.checkpoints == "all" else 1 + further
        return min(blocks, 1 if spec.checkpoints == "none" else 1 + written)
    if spec.window is None:
        return blocks
    step_tokens = min(step_tokens, WINDOW_STEP)
    return min(blocks, -(-(spec.window - 1 + step_tokens) // spec.block_tokens) + 1)
