"""Processes that compile kernels, and keys by which these are found. What one compiles is tested
with rehearsals.
"""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from hotshoe_triton import compiling
from hotshoe_triton.compiling import Compiler, Driver, Turns, settle

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


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Turns]:
    """Of two ranks: locks belong to opened files, not to processes."""
    monkeypatch.setattr(compiling.knobs.cache, "dir", str(tmp_path / "new"))
    return [Turns(), Turns()]


def test_one_has_the_turn_to_compile_a_kernel(turns: list[Turns]) -> None:
    first, second = turns
    fill_, halve_ = (SimpleNamespace(cache_key=key) for key in ("fill", "halve"))
    assert first.take(fill_, "{}")
    assert not second.take(fill_, "{}")
    assert second.take(fill_, "{other}") and second.take(halve_, "{}")
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(second.take, fill_, "{}", wait=True)
        assert not first.take(halve_, "{}")
        assert not waits.done()
        first.leave(fill_, "{}")
        assert waits.result(60)
    assert not first.take(fill_, "{}")
    second.end()
    assert first.take(fill_, "{}") and first.take(halve_, "{}")
    first.end()


def test_everybody_compiles_where_no_turn_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(compiling.knobs.cache, "dir", str(tmp_path / "file"))
    kernel = SimpleNamespace(cache_key="fill")
    for turns in (Turns(), Turns()):
        assert turns.take(kernel, "{}") and turns.take(kernel, "{}", wait=True)
        turns.leave(kernel, "{}")
        turns.end()
