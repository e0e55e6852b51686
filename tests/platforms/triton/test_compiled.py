"""Compiled kernels are found again by what changes them, and by nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotshoe.errors import ConfigError
from hotshoe_triton.compiled import keep_compiled

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def inner(x):
    return x {operation} 2

@triton.jit
def kernel(x, n, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(x + at, inner(tl.load(x + at)), mask=at < n)
"""
#: Compiles one variation after another, and prints what is told of it.
SCRIPT = """
import importlib.util, logging, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hotshoe_triton.compiled import keep_compiled

logging.basicConfig(level="DEBUG", stream=sys.stdout, format="%(message)s")
assert keep_compiled(sys.argv[1]) == sys.argv[1]
for case in sys.argv[2:]:
    path, size, kind, arch, num_warps = case.split(",")
    spec = importlib.util.spec_from_file_location("kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = {"x": "*" + kind, "n": "i32", "SIZE": "constexpr"}
    source = ASTSource(module.kernel, signature, {(2,): int(size)})
    target = GPUTarget("cuda", int(arch), 32)
    triton.compile(source, target=target, options={"num_warps": int(num_warps)})
"""


def compiled(folder: Path, *cases: str) -> list[bool]:
    """Return in a process of its own whether each case was compiled, not found."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "kernels"), *cases],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("kernel kernel: ")]
    return [" compiled in " in line for line in told]


def test_a_kernel_is_found_by_what_changes_it(tmp_path: Path) -> None:
    for name, operation in (("a", "+"), ("b", "*"), ("elsewhere", "+")):
        (tmp_path / f"{name}.py").write_text(KERNEL.format(operation=operation))
    first = f"{tmp_path / 'a.py'},16,fp32,90,4"
    changed = (
        f"{tmp_path / 'b.py'},16,fp32,90,4",  # what it calls
        first.replace(",16,", ",32,"),
        first.replace("fp32", "bf16"),
        first.replace(",90,", ",80,"),
        first.replace(",4", ",8"),
    )
    moved = first.replace("a.py", "elsewhere.py")
    told = compiled(tmp_path, first, *changed, first, *changed, moved)
    assert told == [True] * 6 + [False] * 7


def test_a_folder_that_takes_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"kernel_cache .*file: "):
        keep_compiled(str(tmp_path / "file"))
