"""The parts that this platform is written for, as targets, and how facts are stated."""

from __future__ import annotations

from hotshoe.platform import DeviceFacts, Proof, Target
from hotshoe_triton.device import INTEL_ARCHS, KIB
from hotshoe_xpu.parts import PARTS, Part

#: The feature that lets Triton candidates serve.
TRITON = "triton"


def describe(part: Part, index: int, has_triton: bool) -> DeviceFacts:
    """State a GPU's facts.

    Args:
        part: What it is.
        index: Among the devices.
        has_triton: Whether a Triton that compiles for it is installed.
    """
    known = INTEL_ARCHS[part.arch]
    words = {"bfloat16", "int8", "xmx", f"slm_{known.shared_bytes // KIB}k"}
    words |= {"fp64"} if part.fp64 else set()
    words |= {TRITON} if has_triton else set()
    return DeviceFacts(
        platform="xpu",
        device=f"xpu:{index}",
        name=part.name,
        arch=part.arch,
        memory_bytes=part.memory_bytes,
        compute_units=part.cores,
        features=frozenset(words),
    )


_SIMULATED = Proof("simulated", "pytest tests/platforms/xpu", ("hypothesis",))
TARGETS = tuple(
    Target(
        part.name.removeprefix("Intel "),
        # PyTorch's build for Intel GPUs brings Triton.
        describe(part, 0, has_triton=True),
        proofs=(_SIMULATED,),
    )
    for part in PARTS.values()
)
