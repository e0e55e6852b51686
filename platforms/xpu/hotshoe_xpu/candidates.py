"""Every candidate that this platform offers: the shared ones where Triton is, and Intel's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Candidate, Verdict, refuse
from hotshoe_xpu.targets import TRITON

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
            return refuse("no Triton for Intel GPUs is installed; it is package triton-xpu")
        return supports(spec, facts)

    return judge


def offered() -> Sequence[Candidate]:
    """List the candidates. Imports torch; called once an engine or its explanation is wanted."""
    from hotshoe_triton import linear as streaming
    from hotshoe_triton.attention import declared_layout
    from hotshoe_triton.candidates import kernels, pinned, wide
    from hotshoe_triton.communicator import supports_backend
    from hotshoe_xpu import attention, communicator, ipex_ops, linear

    sdpa = attention.supports, attention.Attention
    gated = ipex_ops.supports_activation, ipex_ops.GatedActivation
    return (
        *(replace(each, supports=with_triton(each.supports)) for each in kernels()),
        pinned(),
        Candidate("communicator", "xccl", supports_backend("xccl"), communicator.build_xccl),
        Candidate("communicator", "ccl", communicator.supports, communicator.build),
        Candidate("attention", "sdpa", *sdpa, layout=declared_layout),
        Candidate("rms_norm", "ipex", ipex_ops.supports_norm, ipex_ops.Norm),
        Candidate("add_rms_norm", "ipex", ipex_ops.supports_norm, ipex_ops.AddNorm),
        Candidate("gated_activation", "ipex", *gated),
        Candidate("linear", "onednn", linear.supports, linear.Linear),
        *wide(linear.supports, linear.Linear),
        Candidate("linear", "triton", with_triton(streaming.supports), streaming.Linear),
    )
