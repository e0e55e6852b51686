"""Sums in peer memory: the interpreted kernel among processes, and who is served.

On two GPUs `test_tensor_parallel` runs the same kernel.
"""

import inspect
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from tests.platforms.triton.conftest import ON_DEVICE

from hotshoe.slots import CommunicatorSpec
from hotshoe_cuda import communicator
from hotshoe_cuda.targets import TARGETS

FACTS = {target.name: target.facts for target in TARGETS}


@pytest.mark.skipif(ON_DEVICE, reason="needs Triton's interpreter, which a device replaces")
@pytest.mark.parametrize(
    ("tasks", "size"),
    [pytest.param("sums", 3, marks=pytest.mark.slow), ("sums,others,wrap,alone", 2)],
)
def test_ranks(tmp_path, tasks: str, size: int) -> None:
    command = [sys.executable, "-m", "tests.platforms.cuda.peer_rank", str(tmp_path)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), tasks],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    found = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(e for _, e in found)
    assert len({bits for bits, _ in found}) == 1, "the ranks do not all have the same bits"
    assert found[0][0]


def test_who_is_served(monkeypatch) -> None:
    linked, alone = FACTS["H200"], FACTS["L40S"]
    monkeypatch.setattr(communicator.library, "supports_backend", lambda name: served)

    def served(spec, facts):
        return communicator.accept(1)

    verdict = communicator.supports(CommunicatorSpec(2), linked)
    assert verdict.accepted and "up to 4096 KiB" in verdict.reason
    assert "NVLink" in communicator.supports(CommunicatorSpec(2), alone).reason
    assert "more than 8" in communicator.supports(CommunicatorSpec(16), linked).reason


@pytest.mark.skipif(dist.is_nccl_available(), reason="needs a PyTorch built without NCCL")
def test_without_the_library_nobody_is() -> None:
    verdict = communicator.supports(CommunicatorSpec(2), FACTS["H200"])
    assert not verdict.accepted and "built without nccl" in verdict.reason


def test_a_rehearsal_compiles_what_sums_would_launch() -> None:
    met, launched = [], []
    group = communicator.Communicator(CommunicatorSpec(2), FACTS["H200"])
    group.rehearse(torch.zeros(8))  # nobody was met, so NCCL adds up
    group._memories, group._rounds, group._max_looks = torch.zeros(2), torch.zeros(1), 1
    group._constants = {"RANK": 0}
    group._kernel = SimpleNamespace(
        warmup=lambda *given, **named: met.append((given, named)), run=launched.append
    )
    x = torch.zeros(8, dtype=torch.bfloat16)
    for other in (x[:0], x.int(), torch.zeros(communicator.max_bytes(2) + 1)):
        group.rehearse(other)
    assert not met
    group.rehearse(x)
    [(given, named)] = met
    assert given == group._arguments(x, x)
    assert named == {"grid": (communicator.PROGRAMS,), "RANK": 0}
    assert not launched


@pytest.mark.parametrize("size", range(2, 9))
def test_more_ranks_write_no_more(size: int) -> None:
    most = communicator.max_bytes(size)
    assert 0 < most * (size - 1) <= communicator.MAX_WRITE_BYTES
    assert most % communicator.PAGE == 0, "slots are aligned"


def test_the_kernel_is_what_was_meant() -> None:
    """Compiled in a process of its own, as this one interprets."""
    code = inspect.getsource(compile_kernel) + "\ncompile_kernel()"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def compile_kernel() -> None:
    import torch

    from hotshoe_cuda.peer_sum import sum_over_ranks
    from hotshoe_triton.device import ARCHS
    from hotshoe_triton.matrix import Compiling, usage

    x = torch.empty(64, 4096, dtype=torch.bfloat16)
    memories, rounds = torch.zeros(2, dtype=torch.int64), torch.zeros(64, dtype=torch.int32)
    constants = {"RANK": 0, "SIZE": 2, "DATA_AT": 4096, "SLOT_BYTES": 1 << 20, "BLOCK": 4096}
    for name in ("sm_80", "sm_90", "sm_100"):
        arch = ARCHS[name]
        with Compiling(arch) as compiling:
            sum_over_ranks[(64,)](
                x, x, memories, rounds, x.numel(), 10, **constants, CHAINED=False, num_warps=16
            )
        [(_, compiled)] = compiling.compiled
        ptx = compiled.asm["ptx"]
        for wanted in ("exch.b32", "sys.release", "sys.acquire", "ld.global.cg.v4", "trap"):
            assert wanted in ptx.replace("global.sys.", "sys."), wanted
        assert usage(arch, compiled)[1] == 0, "registers are spilled"
