"""The other ranks, as a worker sees them: those that share its layers, and the stages beside it.

Hidden states go from stage to stage. Both sides know the number of a step's tokens from its plan,
so that nothing but numbers is sent. Ranks that share layers have the same hidden states; each sends
to its like in the next stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext
from hotshoe.models.base import Model, WideModel
from hotshoe.runner.groups import Group
from hotshoe.slots import CommunicatorOp, CommunicatorSpec, Rendezvous, Selector
from hotshoe.slots.reference.communicator import serve_store
from hotshoe.types import CacheSpec
from hotshoe.types.mesh import Mesh


def group_of(
    selector: Selector, rendezvous: Rendezvous | None, ranks: Sequence[int]
) -> Group | None:
    """Choose what connects ranks; None where there is one."""
    if len(ranks) == 1:
        return None
    hosts = rendezvous.hosts if rendezvous is not None else ()
    apart = len({hosts[rank] for rank in ranks}) > 1 if hosts else False
    spec = CommunicatorSpec(len(ranks), across_hosts=apart)
    return Group(selector.choose("communicator", spec), spec.size)


def check_divided(ctx: BuildContext, architecture: str) -> None:
    """Refuse a model that was built whole where a stage was asked for, or has no experts to spread.

    Raises:
        ConfigError: Its builder asked for no stage's layers, or made no mixture.
    """
    if ctx.experts.size > 1 and not ctx.mixtures and ctx.stage.size == 1:
        raise ConfigError(
            f"enable_expert_parallel: {architecture} has no experts here; leave the option out, "
            "and all of the model is divided by tensor_parallel_size"
        )
    if ctx.stage.size > 1 and ctx.own_layers is None:
        raise ConfigError(
            f"the architecture {architecture} is not divided into stages; "
            "leave pipeline_parallel_size at 1"
        )


def entering_size(model: Model) -> int:
    """Return the columns of what the stage before hands on."""
    return model.entering_size if isinstance(model, WideModel) else model.hidden_size


@dataclass(slots=True)
class Peers:
    """Both groups that a rank is in.

    Attributes:
        mesh: This rank's place.
        tp: Who shares its layers; None for nobody.
        pp: The stages; None where there is only this one.
        inbox: [n, hidden_size] where hidden states arrive, at a fixed address, as recorded steps
            read them there; a step with more tokens than that gets memory of its own.
        store: Where groups of several hosts meet, in the first rank of all.
    """

    mesh: Mesh = field(default_factory=Mesh)
    tp: CommunicatorOp | None = None
    pp: CommunicatorOp | None = None
    inbox: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    store: object = None

    def open(self, rendezvous: Rendezvous) -> None:
        """Meet the ranks of both groups; of all ranks, the first has the store of several hosts."""
        if rendezvous.address and rendezvous.rank == 0:
            self.store = serve_store(rendezvous)
        mesh = self.mesh
        for group, ranks, axis, name in (
            (self.tp, mesh.tp_ranks, mesh.tp, f"tp-{mesh.pp.rank}"),
            (self.pp, mesh.pp_ranks, mesh.pp, f"pp-{mesh.tp.rank}"),
        ):
            if group is not None:
                place = rendezvous.among(ranks, axis.rank, name)
                Path(place.directory).mkdir(exist_ok=True)
                group.open(place)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Let steps run for a time in which neither group exchanges anything.

        Ranks would wait for one another's kernels, of which a rehearsal leaves some out.
        """
        with ExitStack() as stack:
            for group in (self.tp, self.pp):
                if isinstance(group, Group):
                    stack.enter_context(group.quiet())
            yield

    def wait(self, device: str) -> None:
        """Return once all ranks of both groups have come here."""
        for group in (self.tp, self.pp):
            if group is not None:
                group.all_reduce(torch.zeros(1, device=device))

    def agree(self, own: bool, device: str) -> bool:
        """Return whether all ranks of both groups say so."""
        for group in (self.tp, self.pp):
            if group is not None:
                against = torch.tensor([float(not own)], device=device)
                own = not group.all_reduce(against).item()
        return own

    def check_offload(self, ctx: BuildContext) -> None:
        """Refuse weights for host memory that no stage has.

        Raises:
            ConfigError: On every rank.
        """
        if ctx.offload is not None:
            ctx.offload.check(self.agree(not ctx.offload.rings, ctx.device))

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

    def receive(self, num_tokens: int, padded: int = 0) -> Tensor:
        """Return [num_tokens, hidden_size] of the stage before, which the first one has not.

        Args:
            padded: Tokens that a recorded step computes. Those behind the others are zeros, so
                that nothing grows there from step to step.
        """
        assert self.pp is not None
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
        self.tp = self.pp = self.store = None
