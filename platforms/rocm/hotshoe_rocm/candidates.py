"""Every candidate that this platform offers: the shared ones and AITER's."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe.slots import Candidate
from hotshoe_triton.candidates import shared


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_rocm import aiter_ops
    from hotshoe_rocm.linear import Linear

    gated = aiter_ops.supports_activation, aiter_ops.GatedActivation
    return (
        *shared("hip_graph", "rccl", Linear),
        Candidate("rms_norm", "aiter", aiter_ops.supports_norm, aiter_ops.Norm),
        Candidate("add_rms_norm", "aiter", aiter_ops.supports_norm, aiter_ops.AddNorm),
        Candidate("gated_activation", "aiter", *gated),
    )
