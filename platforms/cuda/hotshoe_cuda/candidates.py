"""Every candidate that this platform offers: the shared ones, and libraries of others."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe.slots import Candidate
from hotshoe_triton.candidates import shared


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_cuda import (
        attention,
        blocks,
        communicator,
        deepep,
        deepgemm,
        flash3,
        flash4,
        flashinfer,
        flashinfer_latent,
        flashmla,
        gated_delta,
        helion,
        hub,
        humming,
        latent,
        packed,
        prompt,
        quack,
        reserved,
    )
    from hotshoe_cuda.linear import Linear
    from hotshoe_triton import groups
    from hotshoe_triton.attention import declared_layout

    cudnn = attention.supports, attention.Attention
    flash = flash3.supports, flash3.Attention
    newest = flash4.supports, flash4.Attention
    streaming = prompt.supports, prompt.Attention
    by_group = packed.supports, packed.Linear
    xqa = flashinfer.supports, flashinfer.Attention
    planned = flashinfer_latent.supports, flashinfer_latent.MlaAttention
    return (
        Candidate("attention", "streaming", *streaming, layout=declared_layout),
        Candidate("attention", "cudnn", *cudnn, layout=declared_layout),
        Candidate("attention", "flash3", *flash, layout=declared_layout),
        Candidate("attention", "flash4", *newest, layout=declared_layout),
        Candidate("attention", "flashinfer", *xqa, layout=declared_layout),
        Candidate("mla_attention", "streaming", latent.supports, latent.MlaAttention),
        Candidate("mla_attention", "flashmla", flashmla.supports, flashmla.MlaAttention),
        Candidate("mla_attention", "flashinfer", *planned),
        Candidate("gated_delta", "streaming", gated_delta.supports, gated_delta.GatedDelta),
        Candidate("linear", "streaming_blocks", blocks.supports, blocks.Linear),
        Candidate("linear", "deepgemm", deepgemm.supports, deepgemm.Linear),
        Candidate("linear", "humming", humming.supports, humming.Linear),
        Candidate("linear", "packed", *by_group, weight_bytes=groups.weight_bytes),
        Candidate("rms_norm", "quack", quack.supports, quack.Norm),
        Candidate("add_rms_norm", "quack", quack.supports, quack.AddNorm),
        Candidate("add_rms_norm", "helion", helion.supports, helion.AddNorm),
        Candidate("gated_activation", "hub", hub.supports, hub.GatedActivation),
        Candidate("communicator", "peer_memory", communicator.supports, communicator.Communicator),
        Candidate("communicator", "deepep", deepep.supports, deepep.Communicator),
        *shared("cuda_graph", "nccl", Linear, reserved.build),
    )
