"""Every candidate that this platform offers, by slot: one line each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hotshoe.slots import Candidate

#: Claims of `Candidate.batch_invariant`.
INVARIANT = True


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_rocm import aiter_ops
    from hotshoe_rocm.linear import Linear
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

    # PyTorch calls RCCL by the name of the library whose interface it has.
    rccl = communicator.supports_backend("nccl"), communicator.build_with("nccl")
    return (
        Candidate("attention", "triton", paged.supports, paged.Attention, layout=layout),
        Candidate("attention", "triton_alone", invariant.attention, alone, INVARIANT, layout),
        Candidate("rotary_and_cache", "triton", rotary.supports, rotary.RotaryAndCache, INVARIANT),
        Candidate("rms_norm", "triton", norm.supports, norm.build_norm, INVARIANT),
        Candidate("rms_norm", "aiter", aiter_ops.supports_norm, aiter_ops.Norm),
        Candidate("add_rms_norm", "triton", norm.supports, norm.build_add_norm, INVARIANT),
        Candidate("add_rms_norm", "aiter", aiter_ops.supports_norm, aiter_ops.AddNorm),
        Candidate("gated_activation", "triton", activation.supports, activation.build, INVARIANT),
        Candidate(
            "gated_activation", "aiter", aiter_ops.supports_activation, aiter_ops.GatedActivation
        ),
        Candidate("embedding", "triton", embedding.supports, embedding.Embedding, INVARIANT),
        Candidate("sample", "triton", sampling.supports, sampling.Sample, INVARIANT),
        Candidate("graph", "hip_graph", graph.supports, graph.Graph, INVARIANT),
        Candidate("transfer", "pinned", transfer.supports, transfer.Transfer, INVARIANT),
        Candidate("communicator", "rccl", *rccl),
        Candidate("linear", "streaming", linear.supports, Linear),
        Candidate("linear", "one_tile", invariant.linear, invariant.Linear, INVARIANT),
    )
