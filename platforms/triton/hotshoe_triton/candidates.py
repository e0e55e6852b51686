"""The candidates that GPU platforms share: one line each.

A platform adds its own, and names what its vendor calls otherwise. The module imports no torch; its
functions do, and are called once an engine or its explanation is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Candidate, TransferOp, TransferSpec, plain_bytes, wide_weights

if TYPE_CHECKING:
    from hotshoe_triton.library import Linear

BuildTransfer: TypeAlias = Callable[[TransferSpec, DeviceFacts], TransferOp]

#: Claims of `Candidate.batch_invariant`.
INVARIANT = True


def kernels() -> tuple[Candidate, ...]:
    """List the portable kernels, which serve every GPU that Triton compiles for."""
    return *_over_caches(), *_over_states(), *_over_rows()


def _over_caches() -> tuple[Candidate, ...]:
    from hotshoe_triton import (
        attention,
        block_choice,
        compress,
        compressed,
        indexer,
        invariant,
        latent,
        packed,
        padded,
        relative,
        rotary,
        sparse,
        tree_attention,
    )

    chosen, entries = sparse.SparseMlaAttention, compressed.CompressedAttention
    alone, layout = partial(attention.Attention, alone=True), attention.declared_layout
    room = padded.supports, padded.Attention
    branching = tree_attention.supports, tree_attention.TreeAttention
    return (
        Candidate("attention", "triton", attention.supports, attention.Attention, layout=layout),
        Candidate("attention", "padded", *room, layout=padded.declared_layout),
        Candidate("attention", "triton_alone", invariant.attention, alone, INVARIANT, layout),
        Candidate("packed_attention", "triton", packed.supports, packed.PackedAttention, INVARIANT),
        Candidate("tree_attention", "triton", *branching),
        Candidate("relative_attention", "triton", relative.supports, relative.RelativeAttention),
        Candidate("mla_attention", "triton", latent.supports, latent.MlaAttention),
        Candidate("indexer", "triton", indexer.supports, indexer.Indexer),
        Candidate("block_indexer", "triton", block_choice.supports, block_choice.BlockIndexer),
        Candidate("sparse_mla_attention", "triton", sparse.supports, chosen),
        Candidate("compress", "triton", compress.supports, compress.Compress, INVARIANT),
        Candidate("compressed_attention", "triton", compressed.supports, entries),
        Candidate("rotary_and_cache", "triton", rotary.supports, rotary.RotaryAndCache, INVARIANT),
        Candidate("rotary_and_cache", "padded", padded.supports_writing, padded.RotaryAndCache),
    )


def _over_states() -> tuple[Candidate, ...]:
    from hotshoe_triton import gated_delta, rg_lru, selective_scan, short_conv, state_space

    selective = selective_scan.supports, selective_scan.SelectiveScan
    return (
        Candidate("gated_delta", "triton", gated_delta.supports, gated_delta.GatedDelta),
        Candidate("state_space", "triton", state_space.supports, state_space.StateSpace),
        Candidate("selective_scan", "triton", *selective),
        Candidate("rg_lru", "triton", rg_lru.supports, rg_lru.RgLru),
        Candidate("short_conv", "triton", short_conv.supports, short_conv.ShortConv),
    )


def _over_rows() -> tuple[Candidate, ...]:
    from hotshoe_triton import (
        activation,
        blocks,
        embedding,
        experts,
        fp4,
        fp4_experts,
        groups,
        hyper,
        invariant,
        layer_norm,
        lora,
        moe,
        norm,
        sampling,
    )

    layer = layer_norm.supports, layer_norm.LayerNorm
    connection = hyper.supports, hyper.HyperConnection
    one_tile = invariant.moe, invariant.Moe
    by_group, mixture = (groups.supports, groups.Linear), (moe.supports, moe.Moe)
    return (
        Candidate("rms_norm", "triton", norm.supports, norm.build_norm, INVARIANT),
        Candidate("add_rms_norm", "triton", norm.supports, norm.build_add_norm, INVARIANT),
        Candidate("layer_norm", "triton", *layer, INVARIANT),
        Candidate("hyper_connection", "triton", *connection),
        Candidate("gated_activation", "triton", activation.supports, activation.build, INVARIANT),
        Candidate("embedding", "triton", embedding.supports, embedding.Embedding, INVARIANT),
        Candidate("lora", "triton", lora.supports, lora.Lora),
        Candidate("sample", "triton", sampling.supports, sampling.Sample, INVARIANT),
        Candidate("moe", "triton", *mixture, weight_bytes=experts.weight_bytes),
        Candidate("moe", "fp4", fp4_experts.supports, fp4_experts.Moe),
        Candidate("moe", "one_tile", *one_tile, INVARIANT, weight_bytes=experts.weight_bytes),
        Candidate("linear", "groups", *by_group, weight_bytes=groups.weight_bytes),
        Candidate("linear", "blocks", blocks.supports, blocks.Linear),
        Candidate("linear", "fp4", fp4.supports, fp4.Linear),
        Candidate("linear", "one_tile", invariant.linear, invariant.Linear, INVARIANT),
    )


def pinned(build: BuildTransfer | None = None) -> Candidate:
    """Return page-locked host memory, which every GPU has.

    Args:
        build: The platform's own transfer over `hotshoe_triton.transfer`; None for that alone.
    """
    from hotshoe_triton import transfer

    return Candidate("transfer", "pinned", transfer.supports, build or transfer.Transfer, INVARIANT)


def wide(judge: wide_weights.Supports, build: wide_weights.Build) -> tuple[Candidate, ...]:
    """Return what serves quantized weights that no kernel takes, by a platform's for plain ones."""
    alone = wide_weights.supports(judge), wide_weights.linear(build)
    rounding = wide_weights.supports_rounding(judge), wide_weights.rounding(build)
    return (
        Candidate("linear", "widened", *alone, weight_bytes=plain_bytes),
        Candidate("linear", "rounding", *rounding, weight_bytes=plain_bytes),
    )


def collectives(name: str, backend: str) -> Candidate:
    """Return a vendor's library of collectives.

    Args:
        name: As its users call it.
        backend: As PyTorch calls it.
    """
    from hotshoe_triton import communicator

    serve, build = communicator.supports_backend(backend), communicator.build_with(backend)
    return Candidate("communicator", name, serve, build)


def shared(
    graphs: str,
    group: str,
    build_linear: type[Linear],
    build_transfer: BuildTransfer | None = None,
) -> Sequence[Candidate]:
    """List what platforms have that drive their GPUs through `torch.cuda`.

    Args:
        graphs: What recordings are called here, such as "cuda_graph".
        group: What the library of collectives is called here; PyTorch calls it nccl.
        build_linear: The platform's class over `hotshoe_triton.library`.
        build_transfer: As in `pinned`.
    """
    from hotshoe_triton import graph

    return (
        *kernels(),
        pinned(build_transfer),
        collectives(group, "nccl"),
        Candidate("graph", graphs, graph.supports, graph.Graph, INVARIANT),
        Candidate("linear", "streaming", build_linear.supports, build_linear),
        *wide(build_linear.supports, build_linear),
    )
