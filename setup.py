"""Build `hotshoe-native`: every instruction set of `_isa.py` from the same C++ sources.

Objects of all sets compile in parallel, unchanged ones are kept, and a set whose flags the
compiler refuses is left out by name instead of failing the build. Needs setuptools,
nanobind and a GCC-compatible C++20 compiler; run by pip, or in place while developing:
`python setup.py build_ext --inplace [--isa generic,avx512_bf16] [--sanitize address]`.
"""

import os
import platform
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import ClassVar, NamedTuple

import nanobind
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CSRC = Path("csrc")
PACKAGE = CSRC / "python/hotshoe_native"
ISA_TABLE, LIMITS_TABLE = PACKAGE / "_isa.py", PACKAGE / "_limits.py"
ISAS = {isa.name: isa for isa in runpy.run_path(str(ISA_TABLE))["ISAS"]}
LIMITS = [
    f"-DHOTSHOE_{name}={value}"
    for name, value in runpy.run_path(str(LIMITS_TABLE)).items()
    if name.isupper()
]
#: How the module ends that every machine can run.
NEEDED = "_generic"
NANOBIND = Path(nanobind.include_dir()).parent
INCLUDES = [
    str(CSRC),
    str(NANOBIND / "include"),
    str(NANOBIND / "ext/robin_map/include"),
]
COMPILE_FLAGS = [
    *(
        "-std=c++20",
        "-O3",
        "-g0",
        "-DNDEBUG",
        "-DNB_COMPACT_ASSERTIONS",
        "-pthread",
        "-MMD",
    ),
    *(
        "-fvisibility=hidden",
        "-fno-strict-aliasing",
        "-ffunction-sections",
        "-fdata-sections",
    ),
    *LIMITS,
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi"),
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # false alarms of GCC's intrinsics
]
#: Checks of the stack and of copies of known sizes; sanitizers check more, and do without.
HARDENING = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
STRIP = "-Wl,-s"
LINK_FLAGS = ["-pthread"] + [
    "-Wl,--gc-sections",
    STRIP,
    "-Wl,-z,noexecstack,-z,relro,-z,now",
] * (sys.platform == "linux")

#: What `--sanitize` looks for, and the flags that each needs.
SANITIZERS = {
    "address": ["-fsanitize=address"],
    "undefined": ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}


class Job(NamedTuple):
    """One source file to compile with one set of flags."""

    source: Path
    target: Path
    flags: list[str]

    def is_stale(self) -> bool:
        """Whether the object is older than anything its dependency file (-MMD) names."""
        listing = self.target.with_suffix(".d")
        if not (self.target.exists() and listing.exists()):
            return True
        words = listing.read_text().replace("\\\n", " ").split(": ", 1)[1].split()
        made = self.target.stat().st_mtime
        inputs = [*map(Path, words), Path("setup.py"), ISA_TABLE, LIMITS_TABLE]
        return any(not path.exists() or path.stat().st_mtime > made for path in inputs)


def native_extension(isa_name: str) -> Extension:
    """Describe the module of one instruction set: its sources, its own flags."""
    isa = ISAS[isa_name]
    folders = [CSRC / name for name in isa.folders] or [CSRC]
    sources = {CSRC / "module.cpp", *chain(*(folder.rglob("*.cpp") for folder in folders))}
    defines = [*isa.defines, f"HOTSHOE_MODULE=_{isa_name}", f'HOTSHOE_ISA="{isa_name}"']
    return Extension(
        f"hotshoe_native._{isa_name}",
        sources=sorted(map(str, sources)),
        depends=sorted(str(path) for path in CSRC.rglob("*.h")),
        # What tests alone run is built fast, not to be fast.
        extra_compile_args=[
            *isa.compile_flags,
            *(f"-D{name}" for name in defines),
            *([] if isa.default else ["-O1"]),
        ],
    )


class BuildNative(build_ext):
    """Compile the kernel sources once per instruction set and link one module for each."""

    user_options: ClassVar = [
        *build_ext.user_options,
        (
            "isa=",
            None,
            "comma-separated instruction sets (default: all for this machine)",
        ),
        ("sanitize=", None, f"a sanitizer of GCC and Clang: {', '.join(SANITIZERS)}"),
    ]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.isa: str | None = None
        self.sanitize: str | None = None

    def finalize_options(self) -> None:
        if self.isa:
            names = self.isa.split(",")
            if unknown := [name for name in names if name not in ISAS]:
                raise SystemExit(f"unknown instruction set {unknown}; choices: {list(ISAS)}")
            self.distribution.ext_modules = [native_extension(name) for name in names]
        if self.sanitize and self.sanitize not in SANITIZERS:
            raise SystemExit(f"unknown sanitizer {self.sanitize!r}; choices: {list(SANITIZERS)}")
        super().finalize_options()

    def build_extensions(self) -> None:
        self.extensions = [ext for ext in self.extensions if self._accepts(ext.extra_compile_args)]
        # GNU_UNIQUE symbols would be shared between the builds that live in one process.
        self.flags = COMPILE_FLAGS + ["-fno-gnu-unique"] * self._accepts(["-fno-gnu-unique"])
        link_flags = LINK_FLAGS
        if self.sanitize:
            sanitizer = SANITIZERS[self.sanitize]
            self.flags = [*self.flags, *sanitizer, "-g1", "-fno-omit-frame-pointer"]
            link_flags = [*(flag for flag in LINK_FLAGS if flag != STRIP), *sanitizer]
        else:
            self.flags += HARDENING * self._accepts(HARDENING)
        temp = Path(self.build_temp)
        nanobind_job = Job(NANOBIND / "src/nb_combined.cpp", temp / "nanobind.o", [])
        jobs = {
            ext.name: [
                Job(
                    Path(s),
                    (temp / ext.name / s).with_suffix(".o"),
                    ext.extra_compile_args,
                )
                for s in ext.sources
            ]
            for ext in self.extensions
        }
        every = [nanobind_job, *chain(*jobs.values())]
        with ThreadPoolExecutor(self.parallel or os.cpu_count()) as pool:
            done = list(pool.map(self._compile, every))
        failed = [job for job, compiled in zip(every, done, strict=True) if not compiled]
        self._leave_out(failed, jobs)
        for ext in self.extensions:
            self.compiler.link_shared_object(
                [str(job.target) for job in [*jobs[ext.name], nanobind_job]],
                self.get_ext_fullpath(ext.name),
                target_lang="c++",
                extra_postargs=link_flags,
            )

    def _leave_out(self, failed: list[Job], jobs: dict[str, list[Job]]) -> None:
        """Do without the instruction sets that a source does not compile for, and say so.

        The one that every machine has is needed, and so are those that were asked for by name.
        """
        spared = set() if self.isa else {name for name in jobs if not name.endswith(NEEDED)}
        for name in sorted(spared):
            broken = [job for job in jobs[name] if job in failed]
            if broken:
                sources = ", ".join(str(job.source) for job in broken)
                print(f"{name} is left out: {sources} does not compile", file=sys.stderr)
                failed = [job for job in failed if job not in broken]
                self.extensions = [ext for ext in self.extensions if ext.name != name]
        if failed:
            job = failed[0]
            raise CompileError(f"cannot compile {job.source} for {job.target}")

    def _command(self, flags: list[str], source: Path, target: Path) -> list[str]:
        includes = [f"-I{folder}" for folder in [*INCLUDES, *self.compiler.include_dirs]]
        compiler = self.compiler.compiler_so_cxx
        return [*compiler, *flags, *includes, "-c", str(source), "-o", str(target)]

    def _compile(self, job: Job) -> bool:
        """Compile a source, unless what it gave is still good; tell whether it is there."""
        if not job.is_stale():
            return True
        job.target.parent.mkdir(parents=True, exist_ok=True)
        command = self._command(self.flags + job.flags, job.source, job.target)
        return subprocess.run(command, check=False).returncode == 0

    def _accepts(self, flags: list[str]) -> bool:
        """Try the flags on an empty program; say so when the compiler refuses them."""
        null = Path(os.devnull)
        command = self._command(["-Werror", *flags, "-x", "c++"], null, null)
        probe = subprocess.run(command, check=False, capture_output=True)
        if probe.returncode != 0:
            print(f"the compiler refuses {flags}: left out", file=sys.stderr)
        return probe.returncode == 0


setup(
    packages=["hotshoe_native"],
    package_dir={"": "csrc/python"},
    package_data={"hotshoe_native": ["py.typed"]},
    ext_modules=[
        native_extension(name)
        for name, isa in ISAS.items()
        if isa.default and (not isa.machines or platform.machine() in isa.machines)
    ],
    cmdclass={"build_ext": BuildNative},
)
