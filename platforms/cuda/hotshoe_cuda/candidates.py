"""Every candidate that this platform offers, by slot: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe.slots import Candidate


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_cuda import attention, graph, linear, transfer
    from hotshoe_triton import activation, embedding, norm, rotary, sampling
    from hotshoe_triton import attention as paged

    return (
        Candidate("attention", "cudnn", attention.supports, attention.Attention),
        Candidate("attention", "triton", paged.supports, paged.Attention),
        Candidate("rotary_and_cache", "triton", rotary.supports, rotary.RotaryAndCache),
        Candidate("rms_norm", "triton", norm.supports, norm.build_norm),
        Candidate("add_rms_norm", "triton", norm.supports, norm.build_add_norm),
        Candidate("gated_activation", "triton", activation.supports, activation.build),
        Candidate("embedding", "triton", embedding.supports, embedding.Embedding),
        Candidate("sample", "triton", sampling.supports, sampling.Sample),
        Candidate("graph", "cuda_graph", graph.supports, graph.Graph),
        Candidate("transfer", "pinned", transfer.supports, transfer.Transfer),
        Candidate("linear", "streaming", linear.supports, linear.Linear),
    )
