"""Every candidate that this platform offers: the shared ones and cuDNN."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe.slots import Candidate
from hotshoe_triton.candidates import shared


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_cuda import attention
    from hotshoe_cuda.linear import Linear
    from hotshoe_triton.attention import declared_layout

    cudnn = attention.supports, attention.Attention
    return (
        Candidate("attention", "cudnn", *cudnn, layout=declared_layout),
        *shared("cuda_graph", "nccl", Linear),
    )
