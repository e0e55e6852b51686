"""Every candidate that this platform offers, by slot: one line each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionSpec, Candidate, KVLayout, Verdict, refuse
from hotshoe_xpu.targets import TRITON

#: Claims of `Candidate.batch_invariant`.
INVARIANT = True
Supports = Callable[[Any, DeviceFacts], Verdict]


def has_triton() -> bool:
    """Tell whether a Triton that compiles for Intel GPUs is installed, without importing it."""
    spec = importlib.util.find_spec("triton")
    folders = spec.submodule_search_locations if spec is not None else None
    return any((Path(folder) / "backends" / "intel").is_dir() for folder in folders or ())


def with_triton(supports: Supports) -> Supports:
    """Judge likewise, where the compiler is."""

    def judge(spec: Any, facts: DeviceFacts) -> Verdict:
        if TRITON not in facts.features:
            return refuse("no Triton for Intel GPUs is installed; it is package pytorch-triton-xpu")
        return supports(spec, facts)

    return judge


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_triton import (
        activation,
        embedding,
        norm,
        rotary,
        sampling,
        transfer,
    )
    from hotshoe_triton import attention as paged
    from hotshoe_triton import communicator as groups
    from hotshoe_triton import linear as streaming
    from hotshoe_xpu import attention, communicator, ipex_ops, linear

    xccl = groups.supports_backend("xccl"), groups.build_with("xccl")
    flash = with_triton(paged.supports)
    gated = with_triton(activation.supports)
    rotation = with_triton(rotary.supports)
    table = with_triton(embedding.supports)
    choice = with_triton(sampling.supports)
    normed = with_triton(norm.supports)

    def layout(spec: AttentionSpec, facts: DeviceFacts) -> KVLayout:
        return paged.LAYOUT

    return (
        Candidate("attention", "sdpa", attention.supports, attention.Attention, layout=layout),
        Candidate("attention", "triton", flash, paged.Attention, layout=layout),
        Candidate("rotary_and_cache", "triton", rotation, rotary.RotaryAndCache, INVARIANT),
        Candidate("rms_norm", "triton", normed, norm.build_norm, INVARIANT),
        Candidate("rms_norm", "ipex", ipex_ops.supports_norm, ipex_ops.Norm),
        Candidate("add_rms_norm", "triton", normed, norm.build_add_norm, INVARIANT),
        Candidate("add_rms_norm", "ipex", ipex_ops.supports_norm, ipex_ops.AddNorm),
        Candidate("gated_activation", "triton", gated, activation.build, INVARIANT),
        Candidate(
            "gated_activation", "ipex", ipex_ops.supports_activation, ipex_ops.GatedActivation
        ),
        Candidate("embedding", "triton", table, embedding.Embedding, INVARIANT),
        Candidate("sample", "triton", choice, sampling.Sample, INVARIANT),
        Candidate("transfer", "pinned", transfer.supports, transfer.Transfer, INVARIANT),
        Candidate("communicator", "xccl", *xccl),
        Candidate("communicator", "ccl", communicator.supports, communicator.build),
        Candidate("linear", "onednn", linear.supports, linear.Linear),
        Candidate("linear", "triton", with_triton(streaming.supports), streaming.Linear),
    )
