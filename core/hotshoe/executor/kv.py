"""What a worker's KV cache is, as a value, and whether blocks of one may go into another.

Two engines that pass blocks on compare descriptors first, so that what cannot be is refused before
anything moves. Block size and layout may differ, as blocks can be laid out anew; types may where
the conversion is exact or can be stated. Converting itself is `hotshoe.runner.kv`. Free of torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from hotshoe.errors import KVTransferError
from hotshoe.kv.kinds import KINDS
from hotshoe.slots.specs import KVLayout
from hotshoe.types.cache import QUANTIZED, CachePart, CacheSpec
from hotshoe.types.rows import ROW_KINDS, row_form

#: Of the form of descriptors; it grows when what they say, or what blocks hold, changes.
VERSION = 2
#: Kinds of caches whose blocks can be moved, and those of them that blocks of it can become.
MOVABLE = {
    "full": ("full", "window"),
    "window": ("full", "window"),
    "latent": ("latent",),
    "index": ("index",),
    "state": ("state",),
}
#: Pairs of types that blocks may be converted between, and what that costs; "" is exact.
CONVERSIONS = {
    ("bfloat16", "float32"): "",
    ("float16", "float32"): "",
    ("float32", "bfloat16"): "cached numbers are rounded to 8 significant bits",
    ("float16", "bfloat16"): "cached numbers are rounded to 8 significant bits",
}
#: What numbers of 8 bits may be widened to. As float32 they are what attention reads.
WIDER = {"float32": "", "bfloat16": CONVERSIONS["float32", "bfloat16"]}
#: Which option says the type of a part; of others, kv_cache_dtype.
TYPE_OPTIONS = {"conv": "conv_state_dtype", "state": "state_dtype"}


@dataclass(frozen=True, slots=True)
class KVDescriptor:
    """Everything by which the blocks of two caches can differ. Plain data.

    Attributes:
        model: Digest of what decides the content: config.json with its overrides, quantization.
        layers: Each layer's cache, in the order in which a step runs them; this rank's heads.
        scales: Of each layer whose cache has one scale of all its keys and one of all its values,
            these two, by the layer's number. Scales of tokens are parts of the cache.
        version: Of this form.
    """

    model: str
    layers: tuple[CacheSpec, ...]
    scales: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    version: int = VERSION

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, equal in all layers of what can be moved."""
        return self.layers[0].block_tokens


@dataclass(frozen=True, slots=True)
class KVBlocks:
    """Full blocks that hold a sequence from its first token on, on the host.

    Attributes:
        descriptor: Of the cache that they come from; they are laid out as it says.
        token_ids: What they were computed from, whole blocks.
        layers: For each layer the tensors [num_blocks, block_numel] of its cache: keys and values,
            each with its scales behind it; latents; or the parts of a state. A layer that does not
            keep every token has the last of the sequence's blocks, from `first_kept` on.
    """

    descriptor: KVDescriptor
    token_ids: list[int]
    layers: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Heads:
    """What keys and values of a layer are, apart from how they lie."""

    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    layout: KVLayout


def heads_of(spec: CacheSpec) -> Heads:
    """Read keys and values off the parts of a layer's cache, of which "k" and "v" come first."""
    k, v = spec.parts[:2]
    sizes = [dict(zip(part.axes, part.shape, strict=True)) for part in (k, v)]
    packs = [own[letter.lower()] for own in sizes for letter in "TD" if letter in own]
    layout = KVLayout("", k.axes, v.axes, packs[0] if packs else 1, k.gap)
    k_dim, v_dim = (own["d"] * own.get("D", 1) for own in sizes)
    return Heads(sizes[0]["h"], k_dim, v_dim, layout)


def first_kept(spec: CacheSpec, num_tokens: int) -> int:
    """Return the first block that a layer keeps of so many tokens."""
    return KINDS[spec.kind](spec, 1).first_read(num_tokens)


def check_movable(descriptor: KVDescriptor) -> None:
    """Refuse caches whose blocks cannot be passed on.

    Raises:
        KVTransferError: It names the layer's field and the remedy.
    """
    for number, spec in enumerate(descriptor.layers):
        if spec.kind not in MOVABLE:
            raise KVTransferError(
                f"KV blocks cannot be moved: layers[{number}] has a cache of kind {spec.kind}; "
                f"those of {', '.join(MOVABLE)} are passed on; compute the prompt here",
                f"layers[{number}].kind",
            )
        if spec.tokens_per_entry > 1 or (spec.kind == "window" and len(spec.parts) == 1):
            raise KVTransferError(
                f"KV blocks cannot be moved: layers[{number}] has a cache of entries for several "
                "tokens, or of what they are made of; compute the prompt here",
                f"layers[{number}].tokens_per_entry",
            )
        if spec.kind == "state" and spec.checkpoints == "none":
            raise KVTransferError(
                f"KV blocks cannot be moved: layers[{number}] keeps the latest state alone, and no "
                "other request goes on from it; use state_cache_mode align or all",
                "state_cache_mode",
            )
        if spec.block_tokens != descriptor.block_tokens:
            raise KVTransferError(
                f"KV blocks cannot be moved: layers[{number}] has blocks of {spec.block_tokens} "
                f"tokens and layers[0] of {descriptor.block_tokens}; compute the prompt here",
                f"layers[{number}].block_tokens",
            )


def check_transfer(source: KVDescriptor, target: KVDescriptor) -> str:
    """Judge whether blocks of `source` can be made blocks of `target`.

    Returns:
        What converting them costs; "" if it is exact.

    Raises:
        KVTransferError: They cannot; it names the field and the remedy.
    """
    if source.version != target.version:
        remedy = "run one version of Hotshoe on both sides"
        raise _refusal("version", source.version, target.version, remedy)
    if source.model != target.model:
        raise _refusal(
            "model", source.model, target.model, "load the same model with the same settings"
        )
    if len(source.layers) != len(target.layers):
        raise _refusal("layers", len(source.layers), len(target.layers), "load the same model")
    check_movable(source)
    check_movable(target)
    costs = [_check_layer(number, source, target) for number in range(len(source.layers))]
    return next((cost for cost in costs if cost), "")


def _check_layer(number: int, source: KVDescriptor, target: KVDescriptor) -> str:
    """Judge one layer; see `check_transfer`."""
    where = f"layers[{number}]"
    ours, theirs = source.layers[number], target.layers[number]
    if theirs.kind not in MOVABLE[ours.kind]:
        raise _refusal(f"{where}.kind", ours.kind, theirs.kind, "load the same model")
    if ours.kind in ROW_KINDS:
        return _check_rows(where, ours, theirs)
    if ours.kind not in ("full", "window"):
        _check_entries(where, ours, theirs)
        costs = [_check_type(where, *pair) for pair in zip(ours.parts, theirs.parts, strict=True)]
        return next((cost for cost in costs if cost), "")
    _check_heads(where, ours, theirs)
    for scale in source.scales.get(number, ()):
        if not 0 < scale < math.inf:
            remedy = "compute the prompt here"
            raise _refusal(f"scales[{number}]", scale, target.scales.get(number), remedy)
    if numbers_of(source, number) == numbers_of(target, number):
        return ""
    if theirs.parts[0].dtype in QUANTIZED.values():
        return f"cached numbers are rounded to {theirs.parts[0].dtype}"
    return _check_type(where, ours.parts[0], theirs.parts[0])


def numbers_of(descriptor: KVDescriptor, number: int) -> tuple[object, ...]:
    """Return what says which number an element of a layer's keys or values stands for: its type,
    and, of an 8-bit type, its scales."""
    spec = descriptor.layers[number]
    scales = tuple(part.name for part in spec.parts[2:]) or descriptor.scales.get(number)
    return spec.parts[0].dtype, scales


def _check_heads(where: str, source: CacheSpec, target: CacheSpec) -> None:
    """Refuse other keys and values, and those that a window has dropped."""
    ours, theirs = heads_of(source), heads_of(target)
    if ours.num_kv_heads != theirs.num_kv_heads:
        field, remedy = f"{where}.num_kv_heads", "use the same tensor_parallel_size"
        raise _refusal(field, ours.num_kv_heads, theirs.num_kv_heads, remedy)
    for name in ("head_dim", "v_head_dim"):
        dims = getattr(ours, name), getattr(theirs, name)
        if dims[0] != dims[1]:
            raise _refusal(f"{where}.{name}", *dims, "load the same model on the same platform")
    if source.window is not None and source.window != target.window:
        remedy = "use the same max_model_len"
        raise _refusal(f"{where}.window", source.window, target.window, remedy)


def _check_rows(where: str, source: CacheSpec, target: CacheSpec) -> str:
    """Refuse rows of another size, and return what converting them costs."""
    theirs, ours = row_form(source), row_form(target)
    if theirs.channels != ours.channels:
        remedy = "load the same model"
        raise _refusal(f"{where}.channels", theirs.channels, ours.channels, remedy)
    if theirs == ours:
        return ""
    if ours.quantized:
        return f"cached numbers are rounded to {ours.kv_dtype}"
    return _check_type(where, source.parts[0], target.parts[0])


def _check_entries(where: str, source: CacheSpec, target: CacheSpec) -> None:
    """Refuse states of another size, and states behind other tokens."""
    if source.block_tokens != target.block_tokens:
        field, remedy = f"{where}.block_tokens", "use the same block_size"
        raise _refusal(field, source.block_tokens, target.block_tokens, remedy)
    ours, theirs = (
        [(part.name, part.axes, part.shape) for part in spec.parts] for spec in (source, target)
    )
    if ours != theirs:
        remedy = "load the same model with the same tensor_parallel_size"
        raise _refusal(f"{where}.parts", ours, theirs, remedy)


def _check_type(where: str, source: CachePart, target: CachePart) -> str:
    """Return what converting a part's elements costs."""
    there, here = source.dtype, target.dtype
    if there in QUANTIZED.values() and source.name not in TYPE_OPTIONS:
        cost = WIDER.get(here)
    else:
        cost = "" if there == here else CONVERSIONS.get((there, here))
    if cost is None:
        option = TYPE_OPTIONS.get(source.name, "kv_cache_dtype")
        value = next((name for name, kind in QUANTIZED.items() if kind == there), there)
        remedy = f"use {option} {value} on both sides"
        raise _refusal(f"{where}.dtype", there, here, remedy)
    return cost


def check_windows(blocks: KVBlocks, target: KVDescriptor) -> None:
    """Refuse blocks that end within a block here, if a window here begins before theirs.

    Raises:
        KVTransferError: It names the remedy.
    """
    size, num_tokens = target.block_tokens, len(blocks.token_ids)
    for ours, theirs in zip(blocks.descriptor.layers, target.layers, strict=True):
        wanted = first_kept(theirs, num_tokens // size * size) * size
        if wanted < first_kept(ours, num_tokens) * ours.block_tokens:
            raise _refusal("block_tokens", ours.block_tokens, size, "use the same block_size")


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

    def read_kv(self, block_ids: Sequence[Sequence[int]]) -> Sequence[Sequence[Any]]:
        """Return the content of each group's blocks, as in `KVBlocks.layers`."""
        ...

    def write_kv(
        self, block_ids: Sequence[Sequence[int]], first: Sequence[int], blocks: KVBlocks
    ) -> None:
        """Fill blocks, converting what is needed.

        Args:
            block_ids: For each group blocks of this cache, in the order of the sequence.
            first: For each group the place in the sequence of the first of them, in blocks of this
                cache.
            blocks: `check_transfer` has let them pass; they hold enough tokens.
        """
        ...
