"""Moves experts between ranks, so that each has as much to compute as the others.

Operations count the tokens of each expert on the device. Now and then the counts of the first rank
go to all, and from then on each step looks at one layer: a few experts change places before it
runs, in the order of the device's work. Every rank decides alike, from the same numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext
from hotshoe.layers.experts import Share
from hotshoe.slots import CommunicatorOp
from hotshoe.types.experts import ExpertCounts
from hotshoe.types.mesh import Axis

_log = logging.getLogger(__name__)
#: Least number of steps after which counts are on the host. It is larger where more steps may be
#: under way.
SETTLED = 8
#: Changes of a layer at a time; each moves two experts at most.
CHANGES = 2
#: Least share of a rank's mean work by which a change has to lower the largest.
WORTH = 0.02


class ExpertBalance:
    """Watches the mixtures of this rank's layers.

    Args:
        shares: One for each layer, the same on all ranks but for what they hold.
        axis: This rank's place among them.
        group: Who they are.
        interval: Steps from one look at the counts to the next.
        settled: Steps after which counts are on the host; at least as many as may be under way.
    """

    def __init__(
        self,
        shares: Sequence[Share],
        axis: Axis,
        group: CommunicatorOp,
        interval: int,
        settled: int = SETTLED,
    ) -> None:
        self._settled = settled
        self._shares, self._axis, self._group, self._interval = shares, axis, group, interval
        self._age, self._counts = 0, torch.empty(0)
        self.num_moved = self._num_rearrangements = 0
        self._skew = 0.0  # summed over layers that this round has looked at
        for share in shares:
            share.counts.zero_()  # of steps that warmed up

    @torch.inference_mode()
    def meet(self) -> None:
        """Exchange once what a round does, and change nothing. Called alike by all ranks.

        Libraries connect two ranks when one of them first sends to the other, which takes longer
        than many steps.
        """
        self._collect()
        self._counts = torch.empty(0)
        share, others = self._shares[0], [r for r in range(self._axis.size) if r != self._axis.rank]
        assert share.state is not None
        rows = list(rows_of(share.state(), share.everywhere.shape[1], 0))
        pending = [self._group.send(row, rank) for rank in others for row in rows]
        pending += [self._group.recv(torch.empty_like(row), r) for r in others for row in rows]
        for transfer in pending:
            transfer.wait()

    @torch.inference_mode()
    def before_step(self) -> ExpertCounts | None:
        """Do what is due before the next step. Called alike by all ranks.

        Returns:
            The books, when all layers have been looked at.
        """
        self._age += 1
        layer = self._age - self._settled
        if 0 <= layer < len(self._counts):
            self._even_out(self._shares[layer], self._counts[layer].double())
            if layer + 1 == len(self._counts):
                skew, self._skew = self._skew / len(self._counts), 0.0
                return ExpertCounts(self._num_rearrangements, self.num_moved, skew)
        elif self._age >= max(self._interval, self._settled + len(self._counts)):
            self._collect()
        return None

    def _collect(self) -> None:
        """Agree on the counts since the last time, and begin to count anew."""
        counts = torch.stack([share.counts for share in self._shares])
        for share in self._shares:
            share.counts.zero_()
        self._group.broadcast(counts, 0)
        self._counts, self._age = counts.to("cpu", non_blocking=True), 0

    def _even_out(self, share: Share, counts: Tensor) -> None:
        wanted = balanced(counts, share.everywhere)
        mean = max(float(counts.sum()), 1.0) / self._axis.size
        before, after = (float(loads_of(counts, e).max()) for e in (share.everywhere, wanted))
        self._skew += before / mean
        if torch.equal(wanted, share.everywhere):
            return
        moves = self._move(share, wanted)
        self.num_moved += moves
        self._num_rearrangements += 1
        _log.debug(
            "moved %d experts: a rank's work is at most %.2f of the mean, not %.2f",
            moves, after / mean, before / mean,
        )  # fmt: skip

    def _move(self, share: Share, wanted: Tensor) -> int:
        """Bring experts to new places, all of them before the table says so."""
        assert share.state is not None
        own, places = self._axis.rank, wanted.shape[1]
        state, pending, arrived = share.state(), [], []
        changed = (wanted != share.everywhere).nonzero().tolist()
        for rank, place in changed:
            source, at = _source(share.everywhere, int(wanted[rank, place]), rank)
            if own not in (rank, source):
                continue
            rows = list(rows_of(state, places, at if own == source else place))
            if own == source != rank:
                pending += [self._group.send(row, rank) for row in rows]
                continue
            fresh = [row.clone() if own == source else torch.empty_like(row) for row in rows]
            if own != source:
                pending += [self._group.recv(row, source) for row in fresh]
            arrived.append((place, fresh))
        for transfer in pending:
            transfer.wait()
        for place, fresh in arrived:
            for row, new in zip(rows_of(state, places, place), fresh, strict=True):
                row.copy_(new)
        share.place(wanted, own)
        return len(changed)


def _source(experts: Tensor, expert: int, rank: int) -> tuple[int, int]:
    """Return rank and place from where a rank gets an expert: of its own, if it has it."""
    found = [(int(r), int(p)) for r, p in (experts == expert).nonzero().tolist()]
    return next((f for f in found if f[0] == rank), found[0])


def rows_of(state: Mapping[str, Tensor], places: int, place: int) -> Iterator[Tensor]:
    """Return what an operation keeps of one place, in the order of names.

    Tensors of all places have equal parts for them, one behind the other.
    """
    for name in sorted(state):
        if not name.startswith("experts."):
            yield state[name].view(places, -1)[place]
        elif name.startswith(f"experts.{place}."):
            yield state[name]


def loads_of(counts: Tensor, experts: Tensor) -> Tensor:
    """Return how many tokens each rank computes [ranks]; copies of an expert share them.

    Args:
        counts: [num_experts] float64, tokens of each.
        experts: [ranks, places], which is where.
    """
    return _each(counts, experts)[experts].sum(1)


def _each(counts: Tensor, experts: Tensor) -> Tensor:
    """Return the tokens of one copy of each expert."""
    return counts / experts.flatten().bincount(minlength=len(counts))


def balanced(counts: Tensor, experts: Tensor, changes: int = CHANGES) -> Tensor:
    """Return a better placement [ranks, places], a few changes from the present one.

    A change swaps two experts of the ranks with most and least work, or gives the latter a copy of
    an expert in the place of one that has others. Every expert keeps a place.

    Args:
        counts: [num_experts] float64, tokens of each.
        experts: [ranks, places]: which is where.
        changes: How many at most.
    """
    least = WORTH * float(counts.sum()) / len(experts)
    for _ in range(changes):
        options = [_swapped(counts, experts), _copied(counts, experts)]
        best = min(options, key=lambda option: float(loads_of(counts, option).max()))
        if loads_of(counts, experts).max() - loads_of(counts, best).max() <= least:
            break
        experts = best
    return experts


def _swapped(counts: Tensor, experts: Tensor) -> Tensor:
    loads, each = loads_of(counts, experts), _each(counts, experts)
    most, least = int(loads.argmax()), int(loads.argmin())
    given, taken = experts[most], experts[least]
    moved = each[given][:, None] - each[taken]
    left = torch.minimum(moved, loads[most] - loads[least] - moved)
    twice = torch.isin(given, taken)[:, None] | torch.isin(taken, given)
    i, j = divmod(int(left.masked_fill(twice, -1.0).argmax()), len(taken))
    swapped = experts.clone()
    swapped[most, i], swapped[least, j] = taken[j], given[i]
    return swapped


def _copied(counts: Tensor, experts: Tensor) -> Tensor:
    loads, each = loads_of(counts, experts), _each(counts, experts)
    most, least = int(loads.argmax()), int(loads.argmin())
    copies = experts.flatten().bincount(minlength=len(counts))
    spare = each[experts[least]].masked_fill(copies[experts[least]] == 1, torch.inf)
    wanted = each[experts[most]].masked_fill(torch.isin(experts[most], experts[least]), -1.0)
    if spare.min() == torch.inf or wanted.max() < 0:
        return experts
    copied = experts.clone()
    copied[least, int(spare.argmin())] = experts[most, int(wanted.argmax())]
    return copied


@torch.inference_mode()
def balance_of(config: EngineConfig, ctx: BuildContext, axis: Axis) -> ExpertBalance | None:
    """Return what moves the experts of a model that was built; None where they stay.

    Raises:
        ConfigError: An operation does not tell what it keeps.
    """
    if not config.enable_eplb or not ctx.mixtures:
        return None
    assert ctx.communicator is not None
    if any(share.state is None for share in ctx.mixtures):
        raise ConfigError(
            "enable_eplb moves experts, but the operation of slot moe has no `state`, which tells "
            "where they are; choose another with --kernel moe=NAME, or leave enable_eplb out"
        )
    settled = max(SETTLED, config.num_steps_in_flight)
    interval = config.eplb_step_interval
    balance = ExpertBalance(ctx.mixtures, axis, ctx.communicator, interval, settled)
    balance.meet()
    return balance
