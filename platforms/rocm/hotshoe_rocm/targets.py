"""The parts that this platform is written for, with their facts as data, and how facts are stated.

Constants of an architecture (wave size, shared memory, 8-bit format) are those of
`hotshoe_triton.device`, from which the kernels are compiled. Source of the parts' numbers: AMD's
data sheets, and what the Linux kernel's topology says on such machines.
"""

from __future__ import annotations

from hotshoe.platform import DeviceFacts, Proof, Target
from hotshoe_rocm.gpus import Gpu
from hotshoe_triton.device import ARCHS, FNUZ, KIB

SUPPORTED = tuple(name for name, arch in ARCHS.items() if arch.backend == "hip")
#: Matrix instructions by family.
MATRIX_UNITS = {"cdna": "mfma", "rdna": "wmma"}


def describe(gpu: Gpu, index: int) -> DeviceFacts:
    """State a GPU's facts."""
    return DeviceFacts(
        platform="rocm",
        device=f"cuda:{index}",
        name=gpu.name,
        arch=gpu.arch,
        memory_bytes=gpu.memory_bytes,
        compute_units=gpu.compute_units,
        features=features(gpu.arch),
    )


def features(arch: str) -> frozenset[str]:
    """Return what an architecture has, in words; none for one that has no kernels."""
    if arch not in SUPPORTED:
        return frozenset()
    known = ARCHS[arch]
    words = {"bfloat16", "int8", MATRIX_UNITS[known.family]}
    words |= {f"wave{known.warp_size}", f"lds_{known.shared_bytes // KIB}k"}
    if known.fp8:
        words.add("fp8_fnuz" if known.fp8 == FNUZ else "fp8_ocp")
    return frozenset(words)


#: Name, architecture, bytes of memory, compute units; a GPU of two dies is two devices. Of one that
#: shares the machine's memory it is what the firmware sets apart, here the most.
PARTS = (
    ("AMD Instinct MI250X", "gfx90a", 68_702_699_520, 110),
    ("AMD Instinct MI300X", "gfx942", 206_141_652_992, 304),
    ("AMD Instinct MI355X", "gfx950", 309_220_868_096, 256),
    ("AMD Radeon RX 7900 XTX", "gfx1100", 25_753_026_560, 96),
    ("AMD Radeon 8060S", "gfx1151", 103_079_215_104, 40),
    ("AMD Radeon RX 9060 XT", "gfx1200", 17_095_983_104, 32),
    ("AMD Radeon RX 9070 XT", "gfx1201", 17_095_983_104, 64),
)


def _target(name: str, arch: str, memory_bytes: int, compute_units: int) -> Target:
    gpu = Gpu(name, "", arch, memory_bytes, compute_units, "")
    proofs = (
        Proof(
            "cross-compiled", f"python -m hotshoe_triton.matrix --all --arch {arch}", ("triton",)
        ),
        Proof("simulated", "pytest tests/platforms/triton tests/platforms/rocm", ("triton",)),
    )
    return Target(name.removeprefix("AMD "), describe(gpu, 0), proofs=proofs)


TARGETS = tuple(_target(*part) for part in PARTS)
