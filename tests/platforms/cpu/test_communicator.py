"""Ranks over shared memory as processes: speed, equal sums, and what happens when one dies.

What all communicators promise, the conformance kit tests.
"""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hotshoe_native
from hotshoe.errors import EngineError
from hotshoe.slots import CommunicatorSpec, Rendezvous
from hotshoe_cpu.communicator import Communicator, meet, supports, watchable
from hotshoe_cpu.native import kernels
from hotshoe_cpu.platform import CpuPlatform

PEER = """
import sys, time, torch
from hotshoe.slots import CommunicatorSpec, Rendezvous
from hotshoe_cpu.communicator import Communicator
from hotshoe_cpu.platform import CpuPlatform
torch.set_num_threads(1)
group = Communicator(CommunicatorSpec(2), CpuPlatform().facts())
group.open(Rendezvous(sys.argv[1], 1, 2, 120.0))
x = torch.ones(1, 1024).bfloat16()
try:
    while True:
        group.all_reduce(x)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def peer(tmp_path):
    """Rank 0 here; rank 1 is a process that adds up as long as it can."""
    arguments = [sys.executable, "-c", PEER, str(tmp_path)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    group = Communicator(CommunicatorSpec(2), CpuPlatform().facts())
    group.open(Rendezvous(str(tmp_path), 0, 2, 120.0))
    yield group, process
    group.close()
    process.kill()
    process.communicate()


def add_up(group, x, times=3):
    for _ in range(times):
        group.all_reduce(x)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_that_dies_is_noticed_at_once(peer, sign):
    group, process = peer
    x = torch.ones(1, 1024).bfloat16()
    group.all_reduce(x)
    process.send_signal(sign)
    process.wait()
    with pytest.raises(EngineError, match="rank 0 lost the other ranks: rank 1 has ended"):
        add_up(group, x)
    with pytest.raises(EngineError, match="rank 1 has ended"):
        group.recv(torch.zeros(3), 1).wait()


PAUSING_PEER = PEER.replace(
    "while True:",
    """group.all_reduce(torch.zeros(1 << 18))  # as much as the other rank's first round
    print("the other rank waits for a second round", flush=True)
    sys.stdin.read()
    while False:""",
)


def test_an_interrupt_ends_a_wait(tmp_path):
    arguments = [sys.executable, "-c", PAUSING_PEER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as process:
        group = Communicator(CommunicatorSpec(2), CpuPlatform().facts())
        group.open(Rendezvous(str(tmp_path), 0, 2, 120.0))

        def interrupt():
            process.stdout.readline()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt) as caught:
            group.all_reduce(torch.zeros(1 << 19))
        assert caught.value.__context__ is None  # else the wait ended first, by its own timeout
        thread.join()
        group.close()
        process.stdin.close()


def test_a_rank_that_leaves_is_noticed(peer):
    group, process = peer
    group.all_reduce(torch.ones(1, 1024).bfloat16())
    group.close()
    out, _ = process.communicate(timeout=60)
    assert out.strip() == "EngineError rank 1 lost the other ranks: rank 0 has left the group"


def test_nothing_moves_in_a_group_that_was_closed(peer):
    group, _ = peer
    pending = group.recv(torch.zeros(3), 1)
    group.close()
    with pytest.raises(EngineError, match="rank 0 is in no group"):
        pending.wait()
    with pytest.raises(EngineError, match="rank 0 is in no group"):
        group.all_reduce(torch.zeros(3))
    with pytest.raises(EngineError, match="rank 0 is in no group"):
        group.send(torch.zeros(3), 1)


def test_the_memory_has_no_name(peer):
    maps = Path("/proc/self/maps").read_text().splitlines()
    shared = [line for line in maps if "hotshoe-group" in line]
    assert shared and all("/memfd:hotshoe-group (deleted)" in line for line in shared)
    assert not list(Path("/dev/shm").glob("*hotshoe*"))


def test_what_is_refused(facts):
    assert supports(CommunicatorSpec(2), facts).accepted
    assert supports(CommunicatorSpec(17), facts).reason == "17 ranks are more than 16"
    assert "no build" in supports(CommunicatorSpec(2), replace(facts, features=frozenset())).reason


def test_other_systems_are_refused(facts, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert supports(CommunicatorSpec(2), facts).reason.startswith("anonymous shared memory needs")


def test_who_does_not_come_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"rank 1 did not come within 0\.05 s"):
        meet(Rendezvous(str(tmp_path), 0, 2, 0.05), "1 2")


def test_one_does_not_watch_oneself():
    assert watchable(os.getpid()) == -1


def test_bad_seats_are_refused(facts):
    native = hotshoe_native.load()
    with pytest.raises(ValueError, match="rank 2 of 2"):
        native.group_open(0, 2, 2, 1.0)
    with pytest.raises(ValueError, match="at most 16"):
        native.group_open(0, 0, 17, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_build_sums_alike(facts, dtype, rng):
    """A group of one: the sum is the input, through the vector loops and their ends."""
    native = kernels(facts)
    memory = torch.zeros(native.group_nbytes(1), dtype=torch.uint8)
    handle = native.group_open(memory.data_ptr(), 0, 1, 1.0)
    code = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}[dtype]
    for count in (1, 7, 33, 600_000):
        x = torch.randn(count, generator=rng).to(dtype)
        out = torch.full_like(x, torch.nan)
        native.group_reduce(handle, out.data_ptr(), x.data_ptr(), count, 0, count, code)
        assert torch.equal(out, x)
    native.group_close(handle)
