"""Every candidate that this platform offers, by slot: one line each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hotshoe.slots import Candidate

#: Claims of `Candidate.batch_invariant`.
INVARIANT = True


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_cuda import attention
    from hotshoe_cuda.linear import Linear
    from hotshoe_triton import (
        activation,
        communicator,
        embedding,
        graph,
        invariant,
        linear,
        norm,
        rotary,
        sampling,
        transfer,
    )
    from hotshoe_triton import attention as paged

    alone, layout = partial(paged.Attention, alone=True), paged.declared_layout
    nccl = communicator.supports_backend("nccl"), communicator.build_with("nccl")
    return (
        Candidate("attention", "cudnn", attention.supports, attention.Attention, layout=layout),
        Candidate("attention", "triton", paged.supports, paged.Attention, layout=layout),
        Candidate("attention", "triton_alone", invariant.attention, alone, INVARIANT, layout),
        Candidate("rotary_and_cache", "triton", rotary.supports, rotary.RotaryAndCache, INVARIANT),
        Candidate("rms_norm", "triton", norm.supports, norm.build_norm, INVARIANT),
        Candidate("add_rms_norm", "triton", norm.supports, norm.build_add_norm, INVARIANT),
        Candidate("gated_activation", "triton", activation.supports, activation.build, INVARIANT),
        Candidate("embedding", "triton", embedding.supports, embedding.Embedding, INVARIANT),
        Candidate("sample", "triton", sampling.supports, sampling.Sample, INVARIANT),
        Candidate("graph", "cuda_graph", graph.supports, graph.Graph, INVARIANT),
        Candidate("transfer", "pinned", transfer.supports, transfer.Transfer, INVARIANT),
        Candidate("communicator", "nccl", *nccl),
        Candidate("linear", "streaming", linear.supports, Linear),
        Candidate("linear", "one_tile", invariant.linear, invariant.Linear, INVARIANT),
    )
