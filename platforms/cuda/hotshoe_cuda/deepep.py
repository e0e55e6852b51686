"""Candidate `deepep` of slot `communicator`: all-to-all of rows by DeepEP, all else through NCCL.

It is known from its documentation, not from a run: it scores below NCCL, so that it is taken only
when it is asked for (`--kernel communicator=deepep`). DeepEP sends tokens to experts. Here each
rank is one expert, and a row's expert is the rank that gets it. Rows come by their sender and in
the sender's order, as all-to-all wants them. Both sides know their sizes, so the host waits for
nothing. Source: `Buffer.get_dispatch_layout` and `Buffer.dispatch` of deepseek-ai/DeepEP.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CommunicatorSpec, Rendezvous, Verdict, accept_unless, even_sizes
from hotshoe_cuda.communicator import LIBRARY
from hotshoe_triton import communicator as nccl
from hotshoe_triton.packages import hindrance

#: Below NCCL's.
SCORE = 30
DISTRIBUTION, RELEASES = "deep_ep", ("1.2",)
#: What its kernels among GPUs of one host are built for.
ARCHS = ("sm_80", "sm_90")
#: Ranks of one host for which it has a configuration.
SIZES = (2, 4, 8)
#: Bytes that its kernels copy at once, and of the widest row that its buffer has room for.
UNIT, MAX_ROW_BYTES = 16, 16384
#: Bytes of what a rank says of its buffer.
WORDS = 4096


def supports(spec: CommunicatorSpec, facts: DeviceFacts) -> Verdict:
    """Judge what its kernels are built for; the rest as for NCCL."""
    found = nccl.supports_backend(LIBRARY)(spec, facts)
    if not found.accepted:
        return found
    absent = hindrance(DISTRIBUTION, RELEASES)
    refusals = {
        absent: bool(absent),
        f"DeepEP has no such kernels for {facts.arch}, but for {', '.join(ARCHS)}": (
            facts.arch not in ARCHS
        ),
        "ranks of several hosts: DeepEP needs NVSHMEM for them": spec.across_hosts,
        "not every GPU here reaches every other one's memory over NVLink": (
            "peers" not in facts.features
        ),
        f"{spec.size} ranks are not one of {SIZES}": spec.size not in SIZES,
    }
    note = f"DeepEP for all-to-all of rows of up to {MAX_ROW_BYTES >> 10} KiB; chosen by name alone"
    return accept_unless(refusals, SCORE, note)


class Ranks:
    """What DeepEP asks of an `mpi4py.MPI.Comm`, by which its buffers come to know each other."""

    def __init__(self, group: nccl.Communicator, device: torch.device) -> None:
        self._group, self._device = group, device

    def Get_rank(self) -> int:  # noqa: N802  as mpi4py has it
        return self._group.rank

    def Get_size(self) -> int:  # noqa: N802
        return self._group.size

    def allgather(self, item: int | bytes | bytearray) -> list[int | bytearray]:
        """Return every rank's number of a device, or handle of its memory."""
        said = json.dumps(item if isinstance(item, int) else bytes(item).hex()).encode()
        row = torch.frombuffer(bytearray(said.ljust(WORDS)), dtype=torch.uint8)
        rows = self._group.all_gather(row[None].to(self._device)).cpu()
        items = [json.loads(row.numpy().tobytes()) for row in rows]
        return [it if isinstance(it, int) else bytearray.fromhex(it) for it in items]


class Communicator(nccl.Communicator):
    """See `hotshoe.slots.CommunicatorOp`."""

    def __init__(self, spec: CommunicatorSpec, facts: DeviceFacts, backend: str = LIBRARY) -> None:
        super().__init__(spec, facts, backend)
        self._library: Any = importlib.import_module(DISTRIBUTION)
        self._buffer: Any = None

    def open(self, rendezvous: Rendezvous) -> None:
        super().open(rendezvous)
        kind = self._library.Buffer
        configs = kind.get_dispatch_config(self.size), kind.get_combine_config(self.size)
        room = max(each.get_nvl_buffer_size_hint(MAX_ROW_BYTES, self.size) for each in configs)
        # Destroying it waits for the other ranks, which may be gone: memory goes with the process.
        self._buffer = kind(None, room, 0, explicitly_destroy=True, comm=Ranks(self, self._device))

    def all_to_all(
        self,
        x: Tensor,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        # What decides must be the same on all ranks: the width of a row, not how many there are.
        width = x.shape[1:].numel() * x.element_size()
        if self._buffer is None or width % UNIT or not 0 < width <= MAX_ROW_BYTES:
            return super().all_to_all(x, send_sizes, recv_sizes, out)
        send = even_sizes(x.shape[0], self.size) if send_sizes is None else list(send_sizes)
        count = x.shape[0] if recv_sizes is None else sum(recv_sizes)
        rows = x.reshape(x.shape[0], x.shape[1:].numel())
        self.exchange()
        with self.watching():
            found = self._dispatch(rows.contiguous().view(torch.bfloat16), send, count)
        found = found.view(x.dtype).view(count, *x.shape[1:])
        return found if out is None else out.copy_(found)

    def _dispatch(self, rows: Tensor, send: Sequence[int], count: int) -> Tensor:
        """Send rows, [n, channels] bfloat16, to the ranks in order; return `count` that came."""
        chosen = torch.empty((len(rows), 1), dtype=self._library.topk_idx_t, device=rows.device)
        for rank, part in enumerate(torch.split(chosen, list(send))):
            part.fill_(rank)
        weights = torch.ones(chosen.shape, dtype=torch.float32, device=rows.device)
        to_rank, _hosts, to_expert, goes, _event = self._buffer.get_dispatch_layout(
            chosen, self.size
        )
        # With 0 the host would wait to be told how many come.
        found: Tensor = self._buffer.dispatch(
            rows,
            topk_idx=chosen,
            topk_weights=weights,
            num_tokens_per_rank=to_rank,
            is_token_in_rank=goes,
            num_tokens_per_expert=to_expert,
            num_worst_tokens=max(count, 1),
        )[0]
        return found[:count]

    def close(self) -> None:
        self._buffer = None
        super().close()
