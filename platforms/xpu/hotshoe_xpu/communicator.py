"""Candidates of slot `communicator` over oneCCL: `xccl`, which PyTorch has inside, and `ccl`, which
comes with its bindings for older builds of PyTorch.

Of the bindings only sums, gathering of even pieces, and broadcast are relied on; everything else is
composed from them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import AllgatherOptions

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CommunicatorSpec, Verdict, accept, refuse
from hotshoe_triton.communicator import Communicator
from hotshoe_xpu.extension import hindrance

SCORE = 40
PACKAGE, DISTRIBUTION = "oneccl_bindings_for_pytorch", "oneccl_bind_pt"


def supports(spec: CommunicatorSpec, facts: DeviceFacts) -> Verdict:
    """Judge by whether the bindings are installed; they are not imported."""
    if missing := hindrance(PACKAGE, DISTRIBUTION):
        return refuse(missing)
    return accept(SCORE, "oneCCL through its bindings")


def build(spec: CommunicatorSpec, facts: DeviceFacts) -> Communicator:
    """Import the bindings, which register their process group, and build the operation."""
    importlib.import_module(PACKAGE)
    return Composed(spec, facts, "ccl")


def build_xccl(spec: CommunicatorSpec, facts: DeviceFacts) -> Communicator:
    """Build the operation over what PyTorch has inside."""
    return Xccl(spec, facts, "xccl")


class Xccl(Communicator):
    """See `hotshoe.slots.CommunicatorOp`."""

    def _join(self, store: dist.Store, timeout: timedelta) -> Any:
        """Unlike other libraries' process groups, this one takes its options as an object."""
        options = dist.ProcessGroupXCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupXCCL(store, self.rank, self.size, options)


class Composed(Communicator):
    """See `hotshoe.slots.CommunicatorOp`."""

    def all_gather(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        sizes = [len(x)] * self.size if sizes is None else list(sizes)
        longest = max(sizes)
        found = [x.new_empty((longest, *x.shape[1:])) for _ in sizes]
        if longest and x[:1].numel() + found[0].numel():
            padded = x.new_zeros(found[0].shape)
            padded[: len(x)] = x
            self._run(self._group.allgather, [found], [padded], AllgatherOptions())
        joined = torch.cat([part[:n] for part, n in zip(found, sizes, strict=True)])
        return joined if out is None else out.copy_(joined)

    def reduce_scatter(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        sizes = self._pieces(x, sizes)
        own = self.all_reduce(x).split(sizes)[self.rank]
        return own.clone() if out is None else out.copy_(own)

    def all_to_all(
        self,
        x: Tensor,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        send = self._pieces(x, send_sizes)
        sent = torch.tensor([send], dtype=torch.int64, device=x.device)
        table = [send] * self.size if send_sizes is None else self.all_gather(sent).tolist()
        inputs = self.all_gather(x, [sum(row) for row in table]).split([sum(r) for r in table])
        pieces = [part.split(row)[self.rank] for part, row in zip(inputs, table, strict=True)]
        joined = torch.cat(pieces)
        return joined if out is None else out.copy_(joined)

    def _pieces(self, x: Tensor, sizes: Sequence[int] | None) -> list[int]:
        if sizes is not None:
            return list(sizes)
        if len(x) % self.size:
            raise ValueError(f"{len(x)} rows do not divide among {self.size} ranks; give sizes")
        return [len(x) // self.size] * self.size
