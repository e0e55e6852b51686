"""Where rows of queries, gates, keys and values lie in checkpoints that do not keep them apart."""

from __future__ import annotations

from collections.abc import Callable

from hotshoe.layers import Split
from hotshoe_models.spec import DecoderSpec


def with_gates(split: Split, spec: DecoderSpec) -> tuple[Split, int]:
    """Return where rows of gates, q, k and v are if each head's queries and gates lie together;
    and how many gates there are."""
    dim, moved = spec.head_dim, spec.num_heads * spec.head_dim
    (begin, end), *others = split.ranges
    heads = range(begin // dim, end // dim)
    gates = [((2 * h + 1) * dim, (2 * h + 2) * dim) for h in heads]
    queries = [(2 * h * dim, (2 * h + 1) * dim) for h in heads]
    shifted = [(first + moved, last + moved) for first, last in others]
    return Split((*gates, *queries, *shifted)), end - begin


def in_checkpoint(split: Split, spec: DecoderSpec) -> Split:
    """Return where rows of q, k and v are in a checkpoint, which may have them by groups."""
    if spec.names.grouped_qkv:
        return ungrouped(split, spec)
    return unsharded(split, spec) if spec.names.qkv_shards else split


def unsharded(split: Split, spec: DecoderSpec) -> Split:
    """Return where rows of q, k and v are that a checkpoint has share by share of the heads, in
    each of them queries before values before keys."""
    width = spec.num_heads // spec.names.qkv_shards

    def place(head: int) -> int:
        part, at = divmod(head, spec.num_heads)
        share, at = divmod(at, width)
        return (3 * share + (0, 2, 1)[part]) * width + at

    return _heads(split, spec, place)


def ungrouped(split: Split, spec: DecoderSpec) -> Split:
    """Return where rows of q, k and v are that a checkpoint has kv head by kv head."""
    queries = spec.num_heads // spec.num_kv_heads

    def place(head: int) -> int:
        group, at = divmod(head, queries)
        if head >= spec.num_heads:
            part, group = divmod(head - spec.num_heads, spec.num_kv_heads)
            at = queries + part
        return group * (queries + 2) + at

    return _heads(split, spec, place)


def _heads(split: Split, spec: DecoderSpec, place: Callable[[int], int]) -> Split:
    dim = spec.head_dim
    heads = [h for begin, end in split.ranges for h in range(begin // dim, end // dim)]
    return Split(tuple((place(h) * dim, (place(h) + 1) * dim) for h in heads))
