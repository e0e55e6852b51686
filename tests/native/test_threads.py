"""The thread pool: settings are checked, and it works after a change, after fork and at exit.

What ended the process, or never ended, when it went wrong, is tried in a process of its own.
"""

import re
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

# Addresses for no more than 64 MiB: neither for a hundred stacks, nor for what samplers need.
LIMITED = """
import resource, sys, torch, hotshoe_native
native = hotshoe_native.load(sys.argv[1])

def limit(nbytes):
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + nbytes, -1))
"""

NO_THREADS = (
    LIMITED
    + """
native.set_threads(2)
memory = torch.ones(1 << 20, dtype=torch.int64)
memory[7] = 6
limit(64 << 20)
try:
    native.set_threads(100)
except RuntimeError as error:
    print(error)
print(native.info()["threads"], native.read_memory(memory.data_ptr(), memory.nbytes))
"""
)

NO_MEMORY = (
    LIMITED
    + """
native.set_threads(2)
rows, size = 2, 1 << 24
logits, tokens = torch.zeros(rows, size), torch.zeros(rows, dtype=torch.int64)
logits[:, 77] = 1
numbers = [torch.zeros(rows, dtype=t) for t in (torch.float, torch.int, torch.float, torch.float)]
uniform = torch.zeros(rows, dtype=torch.double)

def sample():
    addresses = [t.data_ptr() for t in (tokens, logits, *numbers, uniform)]
    native.sample(*addresses, rows, size, size, 0)
    print(tokens.tolist())

limit(64 << 20)
for _ in range(3):
    try:
        sample()
    except MemoryError:
        print("no memory")
limit(2 << 30)
sample()
"""
)

# While a long kernel runs, threads are taken from it, and others call short ones.
CHANGES = """
import sys, threading, torch, hotshoe_native
native = hotshoe_native.load(sys.argv[1])
large, small, found = torch.arange(1 << 22), torch.arange(1 << 16), []
large[0] = small[0] = 7

def read(memory):
    found.append(native.read_memory(memory.data_ptr(), memory.nbytes))

for _ in range(20):
    native.set_threads(5)
    threads = [
        threading.Thread(target=read, args=[large]),
        threading.Thread(target=native.set_threads, args=[1]),
        *(threading.Thread(target=read, args=[small]) for _ in range(5)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(found), set(found))
"""


def run(script: str) -> str:
    """Run a script on the best build, and return what it printed."""
    isa = hotshoe_native.load().info()["isa"]
    command = [sys.executable, "-c", script, isa]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


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
    assert run(SCRIPT) == "done\n"


def test_threads_that_do_not_start_are_an_error_and_change_nothing() -> None:
    error, rest = run(NO_THREADS).splitlines()
    assert re.fullmatch(r"thread \d+ of 100 cannot be started: .+", error)
    assert rest == "2 7"


def test_want_of_memory_on_any_thread_is_an_error_and_leaves_the_pool_sound() -> None:
    assert run(NO_MEMORY).splitlines() == [*["no memory"] * 3, "[77, 77]"]


def test_threads_may_change_while_kernels_run() -> None:
    assert run(CHANGES) == "120 {7}\n"


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
