"""Cross-compilation of every kernel, as shipped, for every architecture; needs no accelerator.

`python -m hotshoe_triton.matrix [--arch sm_90] [--all] [--json] [--tuned FILE [--linear MODULE]]`
builds the operations of `CASES` (or those that a platform's file configures) for each architecture,
calls them with tensors that have no memory, and compiles instead of launching. So what is compiled
is what runs there: kernel, constants, warps, stages. The table says what each takes: registers and
spilled bytes of a thread, shared memory of a program.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from hotshoe.errors import ConfigError
from hotshoe.platform import DeviceFacts
from hotshoe_triton.cases import CASES, Case, tuned_cases
from hotshoe_triton.compiling import Driver
from hotshoe_triton.device import ARCHS, Arch

#: Compute units of the machine that is imagined; grids and tables depend on it a little.
UNITS = 132


@dataclass(frozen=True, slots=True)
class Row:
    """What one compiled kernel takes.

    Attributes:
        registers: Of a thread; None where the compiler does not tell.
        spilled_bytes: Of a thread, kept in memory instead.
        shared_bytes: Of a program.
        fault: Why it does not compile, or does not fit; "" if it does.
    """

    arch: str
    case: str
    kernel: str
    warps: int
    stages: int
    registers: int | None = None
    spilled_bytes: int | None = None
    shared_bytes: int = 0
    fault: str = ""


def target_of(arch: Arch) -> GPUTarget:
    """Return what Triton compiles for."""
    return GPUTarget(arch.backend, arch.target, arch.warp_size)


class Compiling:
    """While active, a launch compiles for one architecture and is written down instead."""

    def __init__(self, arch: Arch) -> None:
        self.compiled: list[tuple[str, CompiledKernel]] = []
        self._driver = Driver(target_of(arch))

    def __enter__(self) -> Self:
        self._run = run = JITFunction.run
        compiled = self.compiled
        triton.runtime.driver.set_active(self._driver)

        def compile_only(kernel: JITFunction, *args: Any, grid: Any, **options: Any) -> None:
            kernel.device_caches.clear()
            options["warmup"] = True
            compiled.append((kernel.__name__, run(kernel, *args, grid=grid, **options)))

        JITFunction.run = compile_only
        return self

    def __exit__(self, *error: object) -> None:
        JITFunction.run = self._run


def facts_of(name: str) -> DeviceFacts:
    """Return facts of a device of an architecture, its tensors without memory."""
    return DeviceFacts("", "meta", name, name, 1 << 36, UNITS)


def rows(name: str, case: Case) -> Iterator[Row]:
    """Compile one case for one architecture; nothing if its candidate refuses."""
    arch, facts = ARCHS[name], facts_of(name)
    with Compiling(arch) as compiling:
        fault = ""
        try:
            if not case.call(facts):
                return
        except Exception as error:
            said = str(error).strip().splitlines()
            fault = f"{type(error).__name__}: {''.join(said[-1:])}"
    for kernel, compiled in compiling.compiled:
        meta = compiled.metadata
        registers, spilled = usage(arch, compiled)
        over = meta.shared > arch.shared_bytes
        yield Row(
            name,
            case.name,
            kernel,
            meta.num_warps,
            meta.num_stages,
            registers,
            spilled,
            meta.shared,
            f"more than {arch.shared_bytes} bytes of shared memory" if over else "",
        )
    if fault:
        yield Row(name, case.name, "", 0, 0, fault=fault)


def usage(arch: Arch, compiled: CompiledKernel) -> tuple[int | None, int | None]:
    """Return registers and spilled bytes of a thread, as the compiler's output tells."""
    if arch.backend == "hip":
        text = compiled.asm["amdgcn"]
        return _number(r"\.vgpr_count:\s+(\d+)", text), _number(
            r"\.private_segment_fixed_size:\s+(\d+)", text
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = knobs.nvidia.cuobjdump.path
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=False
        ).stdout
    return _number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text)


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if something does not compile or fit."""
    parser = argparse.ArgumentParser(prog="hotshoe_triton.matrix", description=__doc__)
    parser.add_argument("--arch", choices=ARCHS, action="append", help="default: all")
    parser.add_argument("--all", action="store_true", help="every case, not only the quick ones")
    parser.add_argument("--case", default="", help="cases whose name contains this")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--tuned", type=Path, help="compile what this file configures instead")
    parser.add_argument(
        "--linear",
        metavar="MODULE",
        default="hotshoe_triton.linear",
        help="where the platform that the file is for has its class Linear",
    )
    options = parser.parse_args(arguments)
    try:
        cases = chosen(options)
    except (ConfigError, ImportError, AttributeError) as error:
        parser.error(str(error))
    names = options.arch or list(ARCHS)
    if len(names) > 1:
        # A process each: LLVM does not survive a change of its target.
        tool = [sys.executable, "-m", "hotshoe_triton.matrix", "--case", options.case]
        tool += ["--all"] * options.all + ["--json"] * options.json
        tool += ["--tuned", str(options.tuned)] if options.tuned else []
        tool += ["--linear", options.linear]
        runs = [subprocess.run([*tool, "--arch", name], check=False) for name in names]
        return max(run.returncode for run in runs)
    faults = 0
    for case in cases:
        for row in rows(names[0], case):
            faults += bool(row.fault)
            print(json.dumps(asdict(row)) if options.json else line(row), flush=True)
    return int(faults > 0)


def chosen(options: argparse.Namespace) -> Sequence[Case]:
    """Return the cases that are asked for: who asks for none would take silence for success.

    Raises:
        ConfigError: There is no such case, or no such file.
        ImportError, AttributeError: No operation is where `--linear` says.
    """
    if options.tuned:
        if not options.tuned.is_file():
            raise ConfigError(f"--tuned: there is no file {options.tuned}")
        cases = tuned_cases(options.tuned, importlib.import_module(options.linear).Linear)
    else:
        cases = tuple(case for case in CASES if case.quick or options.all)
    found = [case for case in cases if options.case in case.name]
    if not found:
        more = "" if options.all or options.tuned else "; --all adds those that are not quick"
        raise ConfigError(f"--case: none of {len(cases)} names contains {options.case!r}{more}")
    return found


def line(row: Row) -> str:
    """Return a row for people."""
    return (
        f"{row.arch:8} {row.case:40} {row.kernel:20} {row.warps:2}w {row.stages}s "
        f"{row.registers!s:>4} regs {row.spilled_bytes!s:>5} spilled {row.shared_bytes:7} shared "
        f"{row.fault}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
