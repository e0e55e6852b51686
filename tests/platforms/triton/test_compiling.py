"""Processes that compile kernels, and keys by which these are found. What one compiles is tested
with rehearsals.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from hotshoe_triton import compiling
from hotshoe_triton.compiling import Compiler, Driver, settle

HALF = tl.constexpr(0.5)


def halved(x):
    return x * HALF


def fill(x, VALUE: tl.constexpr):
    tl.store(x, halved(VALUE))


def halve(x):
    tl.store(x, halved(tl.load(x)))


@pytest.mark.parametrize("order", [("fill", "halve"), ("halve", "fill")])
def test_a_kernels_key_does_not_depend_on_kernels_before(
    order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, a kernel would get another key than behind one that calls the same function."""
    monkeypatch.setitem(globals(), "halved", JITFunction(halved))
    kernels = {"fill": JITFunction(fill), "halve": JITFunction(halve)}
    for name in order:
        settle(kernels[name])
    monkeypatch.setitem(globals(), "halved", JITFunction(halved.fn))
    settle(alone := JITFunction({"fill": fill, "halve": halve}[order[1]]))
    assert kernels[order[1]].cache_key == alone.cache_key


def test_modules_with_kernels_import_no_torch() -> None:
    """A process that compiles would wait seconds for it."""
    root = Path(__file__).parents[3]
    found = [
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for folder in sorted((root / "platforms").iterdir())
        for path in sorted(folder.glob("hotshoe_*/**/*.py"))
        if re.search(r"^@(triton|gluon)\.jit", path.read_text(), re.MULTILINE)
    ]
    assert {"hotshoe_triton.kernels.decode", "hotshoe_cuda.kernels.streamed"} <= set(found)
    program = f"import {', '.join(found)}, sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    device = Driver(GPUTarget("cuda", 90, 32))
    device.launcher_cls = lambda *rest: None
    monkeypatch.setattr(compiling, "driver", SimpleNamespace(active=device))
    return Compiler()


def test_a_process_says_when_it_has_tried(compiler: Compiler) -> None:
    """Also of a kernel that it cannot find, and of another one then."""
    try:
        for _ in range(2):
            compiler.compile(JITFunction(fill), "{}")
            assert not compiler._child.connection.ended
    finally:
        compiler.end()
    assert compiler._child.code == -signal.SIGKILL


def test_nobody_waits_for_a_process_that_has_ended(compiler: Compiler) -> None:
    os.kill(compiler._child.pid, signal.SIGKILL)
    compiler.compile(JITFunction(fill), "{}")
    compiler.end()


def test_a_process_ends_with_who_started_it(compiler: Compiler) -> None:
    compiler._child.connection.close()
    assert compiler._child.wait(30)
