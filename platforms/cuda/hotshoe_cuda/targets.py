"""The parts that this platform is written for, with their facts as data, and how facts are stated.

Memory is what NVML reports on such a part, or, where it shares the machine's, the machine's.
Multiprocessors are those of the data sheets. What a program may take of shared memory is that of
`hotshoe_triton.device`, from which the kernels are compiled.
"""

from __future__ import annotations

from pathlib import Path

from hotshoe.platform import DeviceFacts, Proof, Target
from hotshoe_cuda.nvml import Gpu
from hotshoe_triton.device import ARCHS, KIB
from hotshoe_triton.tuned import path_of

#: Features by the compute capability that brought them.
FEATURES = {"bfloat16": (8, 0), "fp8": (8, 9), "wgmma": (9, 0), "tma": (9, 0), "fp4": (10, 0)}
#: Tables of configurations, by part.
TUNED = Path(__file__).parent / "tuned"
#: Warpgroup products exist in these generations alone.
WGMMA = ((9, 0),)
#: Name, compute capability, MiB of memory, multiprocessors, whether boards link several by NVLink.
PARTS = (
    ("NVIDIA A100-SXM4-80GB", (8, 0), 81_920, 108, True),
    ("NVIDIA GeForce RTX 3090", (8, 6), 24_576, 82, False),
    ("NVIDIA L40S", (8, 9), 46_068, 142, False),
    ("NVIDIA GeForce RTX 4090", (8, 9), 24_564, 128, False),
    ("NVIDIA H100 80GB HBM3", (9, 0), 81_559, 132, True),
    ("NVIDIA H200", (9, 0), 143_771, 132, True),
    ("NVIDIA B200", (10, 0), 183_359, 148, True),
    ("NVIDIA GeForce RTX 5090", (12, 0), 32_607, 170, False),
    ("NVIDIA GB10", (12, 1), 122_572, 48, False),
)


def describe(gpu: Gpu, index: int) -> DeviceFacts:
    """State a GPU's facts."""
    major, minor = gpu.capability
    features = {name for name, since in FEATURES.items() if gpu.capability >= since}
    if gpu.capability not in WGMMA:
        features.discard("wgmma")
    if gpu.linked:
        features.add("peers")
    arch = f"sm_{major}{minor}"
    if arch in ARCHS:
        features.add(f"smem_{ARCHS[arch].shared_bytes // KIB}k")
    return DeviceFacts(
        platform="cuda",
        device=f"cuda:{index}",
        name=gpu.name,
        arch=arch,
        memory_bytes=gpu.memory_bytes,
        compute_units=gpu.compute_units,
        features=frozenset(features),
    )


def _target(
    name: str, capability: tuple[int, int], mebibytes: int, units: int, linked: bool
) -> Target:
    facts = describe(Gpu(name, "", capability, mebibytes << 20, units, "", linked), 0)
    matrix = f"python -m hotshoe_triton.matrix --all --arch {facts.arch}"
    proofs = [
        Proof("cross-compiled", matrix, ("triton",)),
        Proof("simulated", "pytest tests/platforms/triton tests/platforms/cuda", ("triton",)),
    ]
    table = path_of(TUNED, facts)
    if table.exists():
        shipped = f"--tuned platforms/cuda/hotshoe_cuda/tuned/{table.name}"
        command = f"python -m hotshoe_triton.matrix --arch {facts.arch} {shipped}"
        proof = Proof("cross-compiled", f"{command} --linear hotshoe_cuda.linear", ("triton",))
        proofs.append(proof)
    return Target(name.removeprefix("NVIDIA "), facts, proofs=tuple(proofs))


TARGETS = tuple(_target(*part) for part in PARTS)
