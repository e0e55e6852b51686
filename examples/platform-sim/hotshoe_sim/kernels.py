"""The device's own kernels: what a vendor would write in its language, here in plain PyTorch.

`launch` is the whole runtime that they need: outputs, inputs, and a function over the content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    PLAIN_LAYOUT,
    AttentionMetadata,
    AttentionSpec,
    Between,
    GatedMlpSpec,
    GraphSpec,
    NormSpec,
    TransferSpec,
    renewed,
    whole_step,
)
from hotshoe_sim.device import QUEUE, SimTensor


def launch(kernel: Callable[..., None], *tensors: Tensor) -> None:
    """Queue a kernel over device tensors, the first of which it writes."""
    for tensor in tensors:
        assert isinstance(tensor, SimTensor), f"a kernel got a tensor on {tensor.device}"
    cells = [tensor.cell for tensor in tensors]  # type: ignore[attr-defined]
    QUEUE.submit(lambda: kernel(*(cell.read() for cell in cells)))


def build_norm(spec: NormSpec, facts: DeviceFacts) -> Callable[[Tensor, Tensor], Tensor]:
    """Build candidate `sim` of slot `rms_norm`."""

    def kernel(out: Tensor, x: Tensor, weight: Tensor) -> None:
        # Row by row, as one core of the device would, so that no row depends on another.
        for row, y in zip(x.double(), out, strict=True):
            scale = torch.rsqrt(row.square().mean() + spec.eps)
            y.copy_(row * scale * (weight.double() + spec.weight_offset))

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        launch(kernel, out, x, weight)
        return out

    return norm


class GatedMlp:
    """Candidate `sim` of slot `gated_mlp`: a whole block in one launch, inner values in float32."""

    def __init__(self, spec: GatedMlpSpec, facts: DeviceFacts) -> None:
        self._place = (facts.device, getattr(torch, spec.dtype))
        self._gate_up = self._down = torch.empty(0)

    def load_gate_up(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        weight = torch.cat(list(tensors["weight"])).to(*self._place)
        self._gate_up = renewed(self._gate_up, weight)

    def load_down(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        weight = torch.cat(list(tensors["weight"])).to(*self._place)
        self._down = renewed(self._down, weight)

    def state(self) -> dict[str, Tensor]:
        held = {"gate_up.weight": self._gate_up, "down.weight": self._down}
        return {name: tensor for name, tensor in held.items() if tensor.numel()}

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        launch(self._kernel, out, x, self._gate_up, self._down)
        return out

    @staticmethod
    def _kernel(out: Tensor, x: Tensor, gate_up: Tensor, down: Tensor) -> None:
        first, second = gate_up.float(), down.float()
        for row, y in zip(x.float(), out, strict=True):  # one by one, as above
            gate, up = (first @ row).chunk(2)
            y.copy_(second @ (torch.nn.functional.silu(gate) * up))

    def nbytes(self) -> int:
        return self._gate_up.nbytes + self._down.nbytes


class Attention:
    """Candidate `sim` of slot `attention`: one head of one request after the other.

    The lengths are read on the device, when the kernel runs; so it can be recorded.
    """

    layout = PLAIN_LAYOUT
    prepare = staticmethod(whole_step)

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        starts, lengths = prepared.query_start_loc, prepared.seq_lens
        launch(self._kernel, out, q, cache, starts, lengths, prepared.block_table)
        return out.view(q.shape[0], -1)

    def _kernel(
        self, out: Tensor, q: Tensor, cache: Tensor, starts: Tensor, lengths: Tensor, table: Tensor
    ) -> None:
        spec = self._spec
        heads = (spec.block_size, spec.num_kv_heads, spec.head_dim)
        blocks = cache.view(*cache.shape[:2], *heads)
        for i, (length, row) in enumerate(zip(lengths.tolist(), table, strict=True)):
            used = row[: -(-length // spec.block_size)].long()
            # [2, num_kv_heads, length, head_dim]
            k, v = blocks[:, used].flatten(1, 2)[:, :length].transpose(1, 2).float()
            step = slice(int(starts[i]), int(starts[i + 1]))
            # [num_kv_heads, group, query_len, head_dim]
            queries = q[step].float().transpose(0, 1).unflatten(0, (spec.num_kv_heads, -1))
            scores = queries @ k[:, None].mT * spec.scale
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(
                1 + length - step.stop + step.start
            )
            weights = scores.masked_fill(later, float("-inf")).softmax(-1)
            out[step] = (weights @ v[:, None]).flatten(0, 1).transpose(0, 1)


class Graph:
    """Candidate `queue` of slot `graph`: keeps the work of a step and queues it again.

    Nothing that is being recorded runs, so calls between pieces need not either.
    """

    def __init__(self, spec: GraphSpec, facts: DeviceFacts) -> None:
        pass

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return self.record_pieces(lambda between: function())

    def record_pieces(self, function: Callable[[Between], Tensor]) -> Callable[[], Tensor]:
        parts: list[Callable[[], object]] = []

        def queued() -> None:
            parts.extend(partial(QUEUE.submit, work) for work in piece)
            piece.clear()

        def between(call: Callable[[], None]) -> None:
            queued()
            parts.append(call)

        with QUEUE.recording() as piece:
            output = function(between)
            queued()

        def replay() -> Tensor:
            for part in parts:
                part()
            return output

        return replay


class Transfer:
    """Candidate `queue` of slot `transfer`: copies take their turn, and nobody waits."""

    def __init__(self, spec: TransferSpec, facts: DeviceFacts) -> None:
        pass

    def host_buffer(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def download(self, tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
        copies: list[Tensor] = []
        cells = [tensor.cell for tensor in tensors]  # type: ignore[attr-defined]
        QUEUE.submit(lambda: copies.extend(cell.read().clone() for cell in cells))

        def arrive() -> Sequence[Tensor]:
            QUEUE.wait()
            return copies

        return arrive

    def fetch(self, copies: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        """Spoil the targets now, and copy when it is waited for: a user of either moment errs."""
        pairs = [(source, target.cell) for source, target in copies]  # type: ignore[attr-defined]

        def spoil() -> None:
            for _, cell in pairs:
                cell.read().view(torch.uint8).fill_(255)

        def bring() -> None:
            for source, cell in pairs:
                cell.read().copy_(source)

        QUEUE.submit(spoil)
        return lambda: QUEUE.submit(bring)
