"""Kernels that a rehearsal meets are compiled beside it; nothing is launched, and zeros are left.

Triton compiles for a device that is not here, in a process of its own: this one interprets.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from triton import knobs

from hotshoe_triton.rehearsal import _Prompter, rehearsal

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def fill(x, n, VALUE: tl.constexpr, SIZE: tl.constexpr):
    tl.store(x + tl.arange(0, SIZE), VALUE, mask=tl.arange(0, SIZE) < n)

@triton.jit
def impossible(x):
    tl.static_assert(False, "never")
"""
SCRIPT = """
import threading
import torch, triton
from triton import knobs
from triton.compiler.errors import CompilationError
from hotshoe_triton import compiling
from hotshoe_triton.compiling import Driver
from hotshoe_triton.device import ARCHS
from hotshoe_triton.matrix import target_of
from hotshoe_triton.rehearsal import rehearsal
import foreign
from hotshoe_kernels import fill, impossible

devices, compiled, elsewhere, launchers, launches = [], [], [], [], []


class Device(Driver):
    class utils:
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 1 << 17})
        load_binary = staticmethod(lambda *rest: ("module", "function", 8, 0, 1024))

    def launcher_cls(self, src, metadata):
        launchers.append(threading.current_thread().name)
        return lambda *rest: launches.append(src.name)


torch.accelerator.set_device_index = lambda index: devices.append(index)


def tell(*, src, cache_hit, **rest):
    compiled.append((src.name, cache_hit))


knobs.compilation.listener = tell
triton.runtime.driver.set_active(Device(target_of(ARCHS["sm_90"])))


def kept():
    return list(fill.device_caches[0][0].values())


empty = torch.empty
with rehearsal(3) as lacks:
    assert not lacks(), "nothing was called yet"
    for _ in range(3):
        x = torch.empty(64)
        fill[(1,)](x, 64, VALUE=1.0, SIZE=64)
        assert lacks()
        assert not x.any(), "nothing wrote to it, and it held nothing"
        fill[(1,)](x, 64, VALUE=2.0, SIZE=64)
        impossible[(1,)](x)
    coming = kept()[0]
    other = threading.Thread(target=lambda: elsewhere.append(coming.result().metadata.name))
    other.start()
    assert not compiled, "the rehearsal is not over"
    foreign.fill[(1,)](torch.empty(64), 64, VALUE=3.0, SIZE=64)
    assert launches == ["fill"], "somebody may wait for what it writes"
    compiled, launches, launchers = [], [], []
other.join()
assert compiled == [("fill", True)] * 2, "processes have compiled them"
assert set(devices) == {3}, devices
assert elsewhere == ["fill"]
assert len(kept()) == 2
assert not any(hasattr(kernel, "result") for kernel in kept())
assert knobs.runtime.jit_cache_hook is None
assert torch.empty is empty
assert len(launchers) == 2
assert all(name.startswith("hotshoe-compile") for name in launchers)
assert not launches
fill[(1,)](x, 64, VALUE=2.0, SIZE=64)
assert launches == ["fill"]
assert len(launchers) == len(compiled) == 2, "nothing is left to do"
compiled = []
try:
    with rehearsal(3):
        fill[(1,)](x, 64, VALUE=4.0, SIZE=64)
        coming = kept()[-1]
        other = threading.Thread(target=lambda: elsewhere.append(coming.result().metadata.name))
        other.start()
        raise KeyboardInterrupt
except KeyboardInterrupt:
    other.join()
assert knobs.runtime.jit_cache_hook is None and torch.empty is empty
assert [name for name, _ in compiled] == ["fill"], "only who waited has compiled it"
assert elsewhere == ["fill", "fill"]
assert not any(hasattr(kernel, "result") for kernel in kept())
compiling.COMMAND, compiled = ("/nowhere/python",), []
with rehearsal(3):
    fill[(1,)](x, 64, VALUE=5.0, SIZE=64)
assert compiled == [("fill", False)], "no process starts, so a thread has compiled it"
assert not hasattr(kept()[-1], "result")
try:
    impossible.warmup(torch.zeros(1), grid=(1,))
except CompilationError:
    print("done")
"""


def test_kernels_are_compiled_beside_it(tmp_path: Path) -> None:
    for module in ("hotshoe_kernels", "foreign"):
        (tmp_path / f"{module}.py").write_text(KERNELS)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON")}
    environment |= {
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(map(str, [tmp_path, *sys.path])),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_nothing_is_rehearsed_where_somebody_else_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", print)
    with rehearsal(0):
        assert knobs.runtime.jit_cache_hook is print


class Compiler:
    """Looks on the disk before it compiles, as Triton does, and takes its time."""

    def __init__(self, disk: list[str]) -> None:
        self._disk = disk

    def compile(self, kernel: SimpleNamespace, specialization: str) -> None:
        if kernel.cache_key not in self._disk:
            time.sleep(0.005)
            self._disk.append(kernel.cache_key)

    def end(self) -> None:
        pass


def test_ranks_share_the_kernels_that_all_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is compiled twice, though both ranks ask for all of them at the same time."""
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    disk: list[str] = []
    ranks, size = [_Prompter(0, 2) for _ in range(2)], 2
    kernels = [
        SimpleNamespace(kernel=SimpleNamespace(cache_key=str(n)), specialization="")
        for n in range(20)
    ]
    for rank in ranks:
        for _ in range(size):
            rank._compilers.append(Compiler(disk))
            rank._idle.put(rank._compilers[-1])
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(rank._compile, kernel) for kernel in kernels for rank in ranks]
        for done in asked:
            done.result(60)
    assert sorted(disk, key=int) == [str(n) for n in range(20)]
    assert all(rank._idle.qsize() == size for rank in ranks)
    for rank in ranks:
        rank.end()


def test_processes_are_divided_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert [_Prompter(0, ranks)._most for ranks in (1, 2, 8, 16)] == [12, 6, 1, 1]
