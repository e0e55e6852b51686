"""Table of the instruction sets that the kernels are compiled for.

Read by setup.py (compiler flags) and by the package (can this CPU run it?), so that both
follow from one list. Holds no logic about the machine and imports nothing.
"""

from typing import NamedTuple


class Isa(NamedTuple):
    """One build of the kernels.

    Attributes:
        name: Extension module name without its leading underscore.
        machines: `platform.machine()` values it is built for; empty = every machine.
        features: CPU features it needs, spelled as the Linux kernel does in /proc/cpuinfo.
        default: Whether a plain build makes it.
        defines: Preprocessor names set for this build.
        folders: Those of the sources that it is built of, beside the module's own; empty = all.
        architecture: How compilers name what has the features, where each has no option.
    """

    name: str
    machines: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    default: bool = True
    defines: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    architecture: str = ""

    @property
    def compile_flags(self) -> list[str]:
        """Compiler options (GCC and Clang) that turn the features on."""
        if self.architecture:
            return [f"-march={self.architecture}"]
        spelling = {"amx_": "amx-", "avx512_": "avx512"}
        flags = []
        for feature in self.features:
            for ours, theirs in spelling.items():
                feature = feature.replace(ours, theirs)
            flags.append(f"-m{feature}")
        return flags


X86 = ("x86_64", "AMD64", "amd64")
ARM = ("aarch64", "arm64")
_AVX2 = ("avx2", "fma", "f16c", "bmi2")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
_AVX512_BF16 = (*_AVX512, "avx512_bf16")
_AMX = (*_AVX512_BF16, "amx_tile", "amx_bf16", "amx_int8")

# Worst first: the last one that this CPU can run is the default choice.
ISAS: tuple[Isa, ...] = (
    Isa("generic"),
    Isa("dotprod", ARM, ("asimddp",), architecture="armv8.2-a+dotprod"),
    Isa("i8mm_bf16", ARM, ("asimddp", "i8mm", "bf16"), architecture="armv8.2-a+dotprod+i8mm+bf16"),
    Isa("avx2", X86, _AVX2),
    Isa("avx512", X86, _AVX512),
    Isa("avx512_bf16", X86, _AVX512_BF16),
    Isa("amx", X86, _AMX),
    Isa(
        "amx_emulated",
        default=False,
        defines=("HOTSHOE_AMX_EMULATED",),
        folders=("attention", "common", "linear", "record"),
    ),
)
