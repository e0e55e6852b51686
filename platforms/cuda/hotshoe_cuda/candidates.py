"""Every candidate that this platform offers, by slot: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe.slots import Candidate


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_cuda import graph, linear, transfer
    from hotshoe_triton import attention

    return (
        Candidate("attention", "triton", attention.supports, attention.Attention),
        Candidate("graph", "cuda_graph", graph.supports, graph.Graph),
        Candidate("transfer", "pinned", transfer.supports, transfer.Transfer),
        Candidate("linear", "cublas", linear.supports, linear.Linear),
    )
