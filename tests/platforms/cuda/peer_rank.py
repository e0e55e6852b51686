"""One rank of `test_communicator`, a process: the interpreted kernel over files instead of GPUs.

python -m tests.platforms.cuda.peer_rank FOLDER RANK SIZE TASK,TASK...
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import tests.platforms.triton.conftest  # noqa: F401  mends the interpreter, and bounds it
import torch
from tests.platforms.triton.bounds import Bounds

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CommunicatorSpec, Rendezvous
from hotshoe_cuda import communicator
from hotshoe_cuda.peer_memory import HANDLE_BYTES

FACTS = DeviceFacts("cuda", "cpu", "two devices", "sm_90", 1 << 30, 4)
#: As engines have it.
TIMEOUT_S = 3600.0
#: One program and small halves, as the interpreter takes its time.
communicator.PROGRAMS, communicator.BLOCK = 2, 64
#: Every length and every type, and the longest in two.
SUMS = [(1, torch.float32), (63, torch.bfloat16), (200, torch.float16), (200, torch.bfloat16)]


class Files:
    """Memory that processes share, as `PeerMemory` offers it."""

    numbers = itertools.count()
    kept: list[torch.Tensor] = []

    def allocate(self, nbytes: int) -> int:
        self.path = Path(sys.argv[1]) / f"memory-{sys.argv[2]}-{next(self.numbers)}"
        return self._address(np.memmap(self.path, np.uint8, "w+", shape=(nbytes,)))

    def handle(self, address: int) -> bytes:
        return self.path.name.encode().ljust(HANDLE_BYTES, b"\0")

    def open(self, handle: bytes) -> int:
        name = handle.rstrip(b"\0").decode()
        return self._address(np.memmap(Path(sys.argv[1]) / name, np.uint8, "r+"))

    def _address(self, memory: np.memmap) -> int:
        self.kept.append(torch.from_numpy(memory))
        return self.kept[-1].data_ptr()


def allow_files() -> None:
    """Let kernels touch what is shared; no argument of theirs lies there."""
    allow = Bounds.allow
    Bounds.allow = lambda bounds, arguments: allow(bounds, [*arguments, *Files.kept])


def opened(folder: str, rank: int, size: int) -> communicator.Communicator:
    group = communicator.Communicator(CommunicatorSpec(size), FACTS, "gloo", Files)
    group.open(Rendezvous(folder, rank, size, TIMEOUT_S))
    assert group._max_looks < 2**31 - 1, "looks are counted in 32 bits"
    return group


def sums(group: communicator.Communicator) -> None:
    """Print a digest of sums of many lengths and types, new, into given memory and in place."""
    for turn, (count, dtype) in enumerate(SUMS):
        inputs = [
            torch.randn(count, generator=torch.Generator().manual_seed(100 * turn + rank)).to(dtype)
            for rank in range(group.size)
        ]
        total = torch.stack(inputs).float().sum(0).to(dtype)
        x = inputs[group.rank].clone()
        found = group.all_reduce(x)
        assert torch.equal(x, inputs[group.rank])
        torch.testing.assert_close(found, total)
        out = torch.full((count, 2), torch.nan, dtype=dtype)[:, 0]
        assert group.all_reduce(x, out) is out and torch.equal(out, found)
        assert group.all_reduce(x, x) is x and torch.equal(x, found)
        print(turn, hashlib.sha256(found.view(torch.uint8).numpy()).hexdigest())


def others(group: communicator.Communicator) -> None:
    """What is too large, or of another type, goes through the library."""
    rounds = group._rounds.clone()
    for x in (torch.ones(4, dtype=torch.int64), torch.zeros(0), torch.ones((1 << 20) + 1)):
        assert torch.equal(group.all_reduce(x), x * group.size)
    assert torch.equal(group._rounds, rounds)


def wrap(group: communicator.Communicator) -> None:
    """Rounds are counted past the largest number."""
    group.all_reduce(torch.ones(1))
    group._rounds.fill_(2**31 - 3)
    for _ in range(6):
        group.broadcast(torch.zeros(1), 0)
        assert group.all_reduce(torch.ones(3)).tolist() == [group.size] * 3
    assert group._rounds.unique().item() < 0


def alone(group: communicator.Communicator) -> None:
    """The last rank leaves; the others give up after so many looks."""
    group._max_looks = 5
    if group.rank == group.size - 1:
        return
    with pytest.raises(Exception, match="inline_asm"):  # the interpreter's way to meet a trap
        group.all_reduce(torch.ones(1))


if __name__ == "__main__":
    folder, rank, size, tasks = sys.argv[1:]
    allow_files()
    with torch.inference_mode():
        members = opened(folder, int(rank), int(size))
        for task in tasks.split(","):
            globals()[task](members)
