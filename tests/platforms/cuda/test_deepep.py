"""DeepEP is refused without its package, and called as it documents; ranks are threads here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CommunicatorSpec, Rendezvous, accept, even_sizes
from hotshoe_cuda import deepep
from hotshoe_cuda.targets import TARGETS

H200 = next(replace(t.facts, device="cpu") for t in TARGETS if t.name == "H200")
SIZE = 2
#: Rows from each rank to each, and whether they are told.
SENT = [
    ([[3, 1], [0, 2]], True),
    ([[0, 5], [0, 0]], True),
    ([[2, 2], [2, 2]], False),
    ([[0, 0], [0, 0]], True),
]


class Buffer:
    """Stands in for `deep_ep.Buffer` of 1.2 among GPUs of one host."""

    def __init__(
        self,
        group: object,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        explicitly_destroy: bool = False,
        comm: Any = None,
    ) -> None:
        assert group is None and not low_latency_mode and not num_rdma_bytes and explicitly_destroy
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        assert num_nvl_bytes == 7 * deepep.MAX_ROW_BYTES * self.size
        assert comm.allgather(self.rank + 5) == [5 + rank for rank in range(self.size)]
        handles = comm.allgather(bytearray([self.rank, 255]))
        assert handles == [bytearray([rank, 255]) for rank in range(self.size)]
        assert all(type(handle) is bytearray for handle in handles)
        self.dispatched = 0

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> SimpleNamespace:
        return SimpleNamespace(get_nvl_buffer_size_hint=lambda row, ranks: 3 * row * ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> SimpleNamespace:
        return SimpleNamespace(get_nvl_buffer_size_hint=lambda row, ranks: 7 * row * ranks)

    def get_dispatch_layout(self, topk_idx: Tensor, num_experts: int) -> tuple[Any, ...]:
        assert topk_idx.dtype == torch.int64 and topk_idx.shape[1:] == (1,)
        assert num_experts % self.size == 0
        ranks = topk_idx // (num_experts // self.size)
        goes = ranks == torch.arange(self.size)
        experts = (topk_idx == torch.arange(num_experts)).sum(0)
        return goes.sum(0).int(), None, experts.int(), goes, None

    def dispatch(
        self,
        x: Tensor,
        *,
        topk_idx: Tensor,
        topk_weights: Tensor,
        num_tokens_per_rank: Tensor,
        is_token_in_rank: Tensor,
        num_tokens_per_expert: Tensor,
        num_worst_tokens: int,
    ) -> tuple[Any, ...]:
        assert x.dim() == 2 and x.dtype == torch.bfloat16 and x.is_contiguous()
        assert x.shape[1] * 2 % 16 == 0 and num_worst_tokens > 0
        assert topk_weights.dtype == torch.float32 and topk_weights.shape == topk_idx.shape
        assert num_tokens_per_rank.tolist() == is_token_in_rank.sum(0).tolist()
        assert num_tokens_per_rank.dtype == num_tokens_per_expert.dtype == torch.int32
        self.dispatched += 1
        WIRE[self.rank] = x, is_token_in_rank
        MET.wait()
        came = torch.cat([rows[goes[:, self.rank]] for rows, goes in WIRE])
        MET.wait()
        assert len(came) <= num_worst_tokens
        found = torch.full((num_worst_tokens, x.shape[1]), torch.nan, dtype=x.dtype)
        found[: len(came)] = came
        return found, None, None, [], (), None


WIRE: list[Any] = [None] * SIZE
MET = Barrier(SIZE, timeout=60)


@pytest.fixture
def package(library, monkeypatch: pytest.MonkeyPatch) -> None:
    library("deep_ep", "deep_ep", "1.2.1+9af0e0d", Buffer=Buffer, topk_idx_t=torch.int64)
    served = accept(50, "as if PyTorch had it")
    monkeypatch.setattr(deepep.nccl, "supports_backend", lambda name: lambda spec, facts: served)


def on_ranks(folder: Path, act: Callable[[deepep.Communicator], object]) -> list[Any]:
    """Return what each rank does, over gloo where NCCL would be."""

    def rank_of(rank: int) -> object:
        group = deepep.Communicator(CommunicatorSpec(SIZE), H200, "gloo")
        group.open(Rendezvous(str(folder), rank, SIZE, 60.0))
        try:
            return act(group)
        finally:
            group.close()

    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(rank_of, range(SIZE)))


@pytest.mark.parametrize(
    ("shape", "dtype", "dispatched"),
    [
        ((8,), torch.bfloat16, 1),
        ((2, 4), torch.float32, 1),
        ((6,), torch.int64, 1),
        ((48,), torch.uint8, 1),
        ((3,), torch.float32, 0),  # 12 bytes
        ((deepep.MAX_ROW_BYTES,), torch.float16, 0),
    ],
)
def test_rows_arrive_as_all_to_all_has_them(
    package, tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype, dispatched: int
) -> None:
    def act(group: deepep.Communicator) -> list[tuple[Tensor, Tensor]]:
        found = []
        for counts, told in SENT:
            wholes = [torch.randn(sum(row), *shape).mul(50).to(dtype) for row in counts]
            wholes = [group.broadcast(x, rank) for rank, x in enumerate(wholes)]
            send, receive = counts[group.rank], [row[group.rank] for row in counts]
            parts = [x.split(row)[group.rank] for x, row in zip(wholes, counts, strict=True)]
            x, sizes = wholes[group.rank], (send, receive) if told else (None, None)
            out = torch.empty(sum(receive), *shape, dtype=dtype) if told else None
            came = group.all_to_all(x, *sizes, out)
            assert out is None or came is out
            assert told or send == even_sizes(len(x), group.size)
            found.append((came, torch.cat(parts)))
        assert group._buffer.dispatched == dispatched * len(SENT)
        return found

    for came, wanted in (pair for pairs in on_ranks(tmp_path, act) for pair in pairs):
        assert came.dtype == dtype and torch.equal(came, wanted)


def test_all_else_goes_through_the_library(package, tmp_path: Path) -> None:
    def act(group: deepep.Communicator) -> list[float]:
        return group.all_reduce(torch.full((8,), 1.0 + group.rank)).tolist()

    assert on_ranks(tmp_path, act) == [[3.0] * 8] * SIZE


def test_without_the_package_it_is_refused(package, library) -> None:
    library("deep_ep", "deep_ep", "")
    verdict = deepep.supports(CommunicatorSpec(2), H200)
    assert verdict.reason.startswith("package deep_ep is not installed")


def test_it_is_chosen_by_name_alone(package) -> None:
    verdict = deepep.supports(CommunicatorSpec(2), H200)
    assert verdict.accepted and verdict.score == 30 < deepep.nccl.SCORE
    assert "up to 16 KiB; chosen by name alone" in verdict.reason


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (CommunicatorSpec(2), replace(H200, arch="sm_89"), "no such kernels for sm_89"),
        (CommunicatorSpec(2), replace(H200, features=frozenset()), "over NVLink"),
        (CommunicatorSpec(3), H200, "3 ranks are not one of (2, 4, 8)"),
        (CommunicatorSpec(2, across_hosts=True), H200, "needs NVSHMEM"),
    ],
)
def test_refusals(package, spec: CommunicatorSpec, facts: DeviceFacts, reason: str) -> None:
    verdict = deepep.supports(spec, facts)
    assert not verdict.accepted and reason in verdict.reason


def test_other_releases_are_refused(package, library) -> None:
    library("deep_ep", "deep_ep", "2.0.0")
    reason = deepep.supports(CommunicatorSpec(2), H200).reason
    assert reason == "deep_ep 2.0.0 is installed, and known are 1.2"
