"""The other ranks, as a worker sees them: those that share its layers, and the stages beside it.

Hidden states go from stage to stage. Both sides know the number of a step's tokens from its plan,
so that nothing but numbers is sent. Ranks that share layers have the same hidden states; each sends
to its like in the next stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from hotshoe.slots import CommunicatorOp, CommunicatorSpec, Rendezvous, Selector
from hotshoe.types import CacheSpec
from hotshoe.types.mesh import Axis, Mesh


def group_of(selector: Selector, axis: Axis) -> CommunicatorOp | None:
    """Choose what connects the ranks of an axis; None where there is one."""
    if axis.size == 1:
        return None
    group: CommunicatorOp = selector.choose("communicator", CommunicatorSpec(axis.size))
    return group


@dataclass(slots=True)
class Peers:
    """Both groups that a rank is in.

    Attributes:
        mesh: This rank's place.
        tp: Who shares its layers; None for nobody.
        pp: The stages; None where there is only this one.
        inbox: [n, hidden_size] where hidden states arrive, at a fixed address, as recorded steps
            read them there; a step with more tokens than that gets memory of its own.
    """

    mesh: Mesh = field(default_factory=Mesh)
    tp: CommunicatorOp | None = None
    pp: CommunicatorOp | None = None
    inbox: Tensor = field(default_factory=lambda: torch.empty(0, 0))

    def open(self, rendezvous: Rendezvous) -> None:
        """Meet the ranks of both groups."""
        pp, tp = self.mesh.pp, self.mesh.tp
        for group, axis, name in (
            (self.tp, tp, f"tp-{pp.rank}"),
            (self.pp, pp, f"pp-{tp.rank}"),
        ):
            if group is not None:
                folder = Path(rendezvous.directory) / name
                folder.mkdir(exist_ok=True)
                group.open(
                    replace(rendezvous, directory=str(folder), rank=axis.rank, size=axis.size)
                )

    def wait(self, device: str) -> None:
        """Return once all ranks of both groups have come here."""
        for group in (self.tp, self.pp):
            if group is not None:
                group.all_reduce(torch.zeros(1, device=device))

    def all_specs(self, own: list[CacheSpec], device: str) -> tuple[list[CacheSpec], int]:
        """Return the caches of all stages' layers, and how many come before this stage's own."""
        if self.pp is None:
            return own, 0
        notes = self._gather(self.pp, msgspec.msgpack.encode(own), device)
        stages = [msgspec.msgpack.decode(note, type=list[CacheSpec]) for note in notes]
        before = stages[: self.mesh.pp.rank]
        return [spec for stage in stages for spec in stage], sum(map(len, before))

    def _gather(self, group: CommunicatorOp, note: bytes, device: str) -> list[bytes]:
        """Return every stage's note, of whatever length."""
        own = torch.tensor(list(note), dtype=torch.int32, device=device)
        lengths = group.all_gather(torch.tensor([len(note)], dtype=torch.int32, device=device))
        notes = group.all_gather(own, lengths.tolist()).tolist()
        ends = lengths.cumsum(0).tolist()
        return [bytes(notes[end - n : end]) for end, n in zip(ends, lengths.tolist(), strict=True)]

    def make_inbox(self, size: int, like: Tensor) -> None:
        """Take memory for hidden states of so many tokens, each of them like a row of `like`."""
        if not self.mesh.pp.is_first:
            self.inbox = like.new_zeros(size, like.shape[1])

    def receive(self, num_tokens: int, padded: int = 0) -> Tensor | None:
        """Return [num_tokens, hidden_size] of the stage before; None in the first.

        Args:
            padded: Tokens that a recorded step computes. Those behind the others are zeros, so
                that nothing grows there from step to step.
        """
        if self.pp is None or self.mesh.pp.is_first:
            return None
        self.inbox[num_tokens:padded].zero_()
        fits, width = num_tokens <= len(self.inbox), self.inbox.shape[1]
        hidden = self.inbox[:num_tokens] if fits else self.inbox.new_empty(num_tokens, width)
        self.pp.recv(hidden, self.mesh.pp.rank - 1).wait()
        return hidden

    def send(self, hidden: Tensor) -> None:
        """Hand a step's hidden states over to the next stage.

        It waits until they are taken or under way, as some communicators move nothing while their
        rank has nothing to do.
        """
        assert self.pp is not None
        self.pp.send(hidden.contiguous(), self.mesh.pp.rank + 1).wait()

    def close(self) -> None:
        """Leave both groups."""
        for group in (self.pp, self.tp):
            if group is not None:
                group.close()
        self.tp = self.pp = None
