"""The kernels' tests, run again on builds that a sanitizer watches (`make native SAN=...`)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hotshoe_native

ROOT = Path(__file__).parents[2]
#: The library of each that must be in the process before Python is.
RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
#: Tests that name the instruction set which they call.
PLACES = [
    "tests/native",
    *(f"tests/platforms/cpu/test_{name}.py" for name in ("gated_delta", "sparse", "state_space")),
]
#: Python frees nothing at its end. The first finding of any kind ends the process.
OPTIONS = "detect_leaks=0:halt_on_error=1:print_stacktrace=1"

#: One call that each must object to, so that its silence about the tests means something.
MISTAKES = {
    "address": "m.read_memory(x.data_ptr(), 4 * x.numel() + 64)",
    "undefined": "m.read_memory(x.data_ptr() + 1, 800)",
    "thread": """
from threading import Thread
def write():
    for _ in range(2000):
        m.gated_activation(x.data_ptr(), y.data_ptr(), 1, 64, 64, 128, 0, 0)
threads = [Thread(target=write) for _ in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
""",
}
PREPARE = """
import hotshoe_native, torch
m = hotshoe_native.load()
x, y = torch.zeros(64), torch.zeros(128)
"""


def library(name: str) -> str:
    """Return the path of a library of the compiler, or its bare name where there is none."""
    command = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", RUNTIMES)
def test_kernels_are_clean(sanitizer: str) -> None:
    if shutil.which("gcc") is None or not Path(runtime := library(RUNTIMES[sanitizer])).is_file():
        pytest.skip(f"needs GCC and its {RUNTIMES[sanitizer]}")
    isa = hotshoe_native.load().info()["isa"]
    build = ["make", "native", f"SAN={sanitizer}", f"ISA={isa}", f"VENV={sys.prefix}"]
    subprocess.run(build, cwd=ROOT, check=True)
    environment = [
        "env",
        f"PYTHONPATH=build/{sanitizer}",
        # An exception's way out is looked up in the library that is loaded first.
        f"LD_PRELOAD={runtime} {library('libstdc++.so.6')}",
        *(f"{name}_OPTIONS={OPTIONS}" for name in ("ASAN", "UBSAN", "TSAN")),
    ]
    # The thread sanitizer of some compilers does not know where Linux puts libraries at random.
    plain = ["setarch", "-R"] * (shutil.which("setarch") is not None)
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider"]
    chosen = [*PLACES, "-m", "not slow", "-k", f"{isa} and not emulated"]
    mistake = [sys.executable, "-c", PREPARE + MISTAKES[sanitizer]]
    result = subprocess.run([*environment, *plain, *mistake], check=False, cwd=ROOT)
    assert result.returncode != 0, "it sees nothing"
    command = [*environment, *plain, *tests, *chosen]
    result = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, (result.stdout + result.stderr)[-8000:]
    assert " passed" in result.stdout
