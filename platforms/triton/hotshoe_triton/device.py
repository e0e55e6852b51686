"""What the kernels need to know of an architecture, as plain constants by its name.

An architecture that has no row here is refused by every candidate. Nothing here touches a device.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Verdict, accept_unless

SCORE = 50
DTYPES = ("bfloat16", "float16", "float32")
KIB = 1024


@dataclass(frozen=True, slots=True)
class Arch:
    """One architecture.

    Attributes:
        backend: Triton's name of the compiler behind it.
        target: Its name there.
        warp_size: Threads that run in step.
        shared_bytes: Shared memory that one program may take.
        fp8: The e4m3 type that its matrix units multiply, as PyTorch names it; "" for none.
        family: Architectures of one family share configurations.
    """

    backend: str
    target: int | str
    warp_size: int
    shared_bytes: int
    fp8: str
    family: str


OCP, FNUZ = "float8_e4m3fn", "float8_e4m3fnuz"

ARCHS: dict[str, Arch] = {
    "sm_80": Arch("cuda", 80, 32, 163 * KIB, "", "ampere"),
    "sm_86": Arch("cuda", 86, 32, 99 * KIB, "", "small"),
    "sm_89": Arch("cuda", 89, 32, 99 * KIB, OCP, "small"),
    "sm_90": Arch("cuda", 90, 32, 227 * KIB, OCP, "hopper"),
    "sm_100": Arch("cuda", 100, 32, 227 * KIB, OCP, "blackwell"),
    "sm_103": Arch("cuda", 103, 32, 227 * KIB, OCP, "blackwell"),
    "sm_120": Arch("cuda", 120, 32, 99 * KIB, OCP, "small"),
    "sm_121": Arch("cuda", 121, 32, 99 * KIB, OCP, "small"),
    "gfx90a": Arch("hip", "gfx90a", 64, 64 * KIB, "", "cdna"),
    "gfx942": Arch("hip", "gfx942", 64, 64 * KIB, FNUZ, "cdna"),
    "gfx950": Arch("hip", "gfx950", 64, 160 * KIB, OCP, "cdna"),
    "gfx1100": Arch("hip", "gfx1100", 32, 64 * KIB, "", "rdna"),
    "gfx1151": Arch("hip", "gfx1151", 32, 64 * KIB, "", "rdna"),
    "gfx1200": Arch("hip", "gfx1200", 32, 64 * KIB, OCP, "rdna"),
    "gfx1201": Arch("hip", "gfx1201", 32, 64 * KIB, OCP, "rdna"),
}
#: Known to the kernels, but not to `matrix.py`: Intel's compiler asks the device what it can do.
#: Facts of the parts, not of a compiler: sub-groups, and shared memory of an Xe core.
INTEL_ARCHS: dict[str, Arch] = {
    "pvc": Arch("xpu", "pvc", 16, 128 * KIB, "", "small"),
    "dg2": Arch("xpu", "dg2", 16, 64 * KIB, "", "small"),
    "bmg": Arch("xpu", "bmg", 16, 128 * KIB, "", "small"),
}
KNOWN = ARCHS | INTEL_ARCHS


def arch_of(facts: DeviceFacts) -> Arch:
    """Return the constants of a device's architecture.

    Raises:
        KeyError: It has none; `judge` refuses such a device before anything is built.
    """
    return KNOWN[facts.arch]


def judge(facts: DeviceFacts, dtype: str, refusals: dict[str, bool] | None = None) -> Verdict:
    """Accept what the kernels can do.

    Args:
        facts: The device; an unknown architecture is refused.
        dtype: The operation's element type.
        refusals: Reasons by which the specification is refused, each with whether it holds.
    """
    known = {
        f"architecture {facts.arch} is not one of {', '.join(KNOWN)}": facts.arch not in KNOWN,
        f"element type {dtype} is not one of {', '.join(DTYPES)}": dtype not in DTYPES,
    }
    return accept_unless(known | (refusals or {}), SCORE, f"Triton kernels for {facts.arch}")


def chaining(facts: DeviceFacts) -> dict[str, bool]:
    """Return the launch constants of kernels that use `kernels.chain`."""
    from triton import knobs

    arch = arch_of(facts)
    if arch.backend != "cuda" or int(arch.target) < 90 or knobs.runtime.interpret:
        return {"CHAINED": False}
    return {"CHAINED": True, "launch_pdl": True}


def pairs_bits(facts: DeviceFacts) -> bool:
    """Whether kernels may make two numbers of 16 bits at once, by NVIDIA's instructions."""
    from triton import knobs

    return arch_of(facts).backend == "cuda" and not knobs.runtime.interpret


def limited(registers: int, facts: DeviceFacts) -> dict[str, int]:
    """Return launch constants by which a thread has so many registers, where that can be said."""
    return {"maxnreg": registers} if pairs_bits(facts) else {}


def next_power_of_2(n: int) -> int:
    """Return the least power of two that is at least n, for n > 0."""
    return 1 << (n - 1).bit_length()
