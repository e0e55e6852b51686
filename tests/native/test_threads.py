"""The thread pool: settings are checked, and it works after a change, after fork and at exit."""

import subprocess
import sys
import time

import pytest
import torch

import hotshoe_native

# A product large enough for two threads, in this process, in a forked child, and then the end
# of both while their workers sleep.
SCRIPT = """
import os, sys, torch, hotshoe_native
native = hotshoe_native.load(sys.argv[1])
n, k = 512, 1024
w, x, y = torch.randn(n, k), torch.randn(64, k), torch.empty(64, n)
packed = torch.empty(native.linear_packed_nbytes(0, n, k), dtype=torch.uint8)

def check():
    y.fill_(float("nan"))
    native.linear(0, packed.data_ptr(), n, k, 64, 0, x.data_ptr(), k, 0, 0, y.data_ptr(), n)
    error = (y - want).abs().max().item()
    assert error < 1e-3, error

want = (x.double() @ w.double().T).float()
for threads in (1, 3, 2):
    native.set_threads(threads)
    native.linear_pack_rows(0, packed.data_ptr(), n, k, 0, n, 0, w.data_ptr(), k)
    for _ in range(20):
        check()
child = os.fork()
if child == 0:
    native.linear_pack_rows(0, packed.data_ptr(), n, k, 0, n, 0, w.data_ptr(), k)
    native.linear(0, packed.data_ptr(), n, k, 64, 0, x.data_ptr(), k, 0, 0, y.data_ptr(), n)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
check()
print("done")
"""


def test_settings_are_reported_and_checked() -> None:
    native = hotshoe_native.load("generic")
    native.set_threads(2, [0, 0])
    assert (native.info()["threads"], native.info()["cores"]) == (2, [0, 0])
    native.set_threads(1)
    assert (native.info()["threads"], native.info()["cores"]) == (1, [])
    with pytest.raises(ValueError, match="at least 1, not 0"):
        native.set_threads(0)
    with pytest.raises(ValueError, match="1 cores for 2 threads"):
        native.set_threads(2, [0])


def test_pool_survives_change_fork_and_exit() -> None:
    isa = hotshoe_native.load().info()["isa"]
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, isa],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_idle_workers_burn_no_processor_time() -> None:
    native = hotshoe_native.load()
    native.set_threads(4)
    memory = torch.ones(1 << 20)
    native.read_memory(memory.data_ptr(), memory.nbytes)

    def burnt_s() -> float:
        before = time.process_time()
        time.sleep(0.1)
        return time.process_time() - before

    # Some look around before they sleep, later than others where cores are taken.
    assert any(burnt_s() < 0.01 for _ in range(30))
