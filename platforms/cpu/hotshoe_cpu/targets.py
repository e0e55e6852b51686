"""The processors that this platform is written for, as data.

Facts of a typical part of each kind; only architecture and features matter to the candidates.
"""

from hotshoe.platform import DeviceFacts, Proof, Target
from hotshoe_cpu.native import FEATURE

_GIB = 1 << 30
_X86 = ("generic", "avx2", "avx512", "avx512_bf16", "amx")
_ARM = ("generic", "dotprod", "i8mm_bf16")
_EMULATED = Proof(
    "cross-compiled",
    "tools/check_arm.sh OUT_DIR ROOT",
    executables=("aarch64-linux-gnu-g++", "qemu-aarch64"),
)


def _target(name: str, arch: str, isas: tuple[str, ...], proofs: tuple[Proof, ...] = ()) -> Target:
    best = isas[-1]
    facts = DeviceFacts("cpu", "cpu", name, arch, 64 * _GIB, 16, frozenset([*isas, FEATURE + best]))
    options = "" if best == "generic" else f"--platform-options.isa {best}"
    return Target(name, facts, frozenset([best]), options, proofs)


TARGETS = (
    _target("x86 with AVX2", "x86_64", _X86[:2]),
    _target("x86 with AVX-512", "x86_64", _X86[:3]),
    _target("x86 with AVX-512 BF16", "x86_64", _X86[:4]),
    _target("x86 with AMX", "x86_64", _X86),
    _target("Arm", "aarch64", _ARM[:1], (_EMULATED,)),
    _target("Arm with dot products", "aarch64", _ARM[:2], (_EMULATED,)),
    _target("Arm with matrix products", "aarch64", _ARM, (_EMULATED,)),
)
