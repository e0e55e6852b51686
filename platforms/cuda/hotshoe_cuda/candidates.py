"""Every candidate that this platform offers: the shared ones, and libraries for attention."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe.slots import Candidate
from hotshoe_triton.candidates import shared


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_cuda import attention, communicator, flash3, flashinfer
    from hotshoe_cuda.linear import Linear
    from hotshoe_triton.attention import declared_layout

    cudnn = attention.supports, attention.Attention
    flash = flash3.supports, flash3.Attention
    xqa = flashinfer.supports, flashinfer.Attention
    return (
        Candidate("attention", "cudnn", *cudnn, layout=declared_layout),
        Candidate("attention", "flash3", *flash, layout=declared_layout),
        Candidate("attention", "flashinfer", *xqa, layout=declared_layout),
        Candidate("communicator", "peer_memory", communicator.supports, communicator.Communicator),
        *shared("cuda_graph", "nccl", Linear),
    )
