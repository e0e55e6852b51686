"""Where a rank stands among the ranks of an engine. Numbers only.

Ranks are numbered stage by stage: rank = stage * tp + part, where `pp` stages hold the layers of
the model one after the other, and the `tp` ranks of a stage share each of its layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Axis:
    """A line of ranks, and a place in it.

    Attributes:
        rank: The place, 0 <= rank < size.
        size: Ranks of the line.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank + 1 == self.size


@dataclass(frozen=True, slots=True)
class Mesh:
    """One rank's place on every axis.

    Attributes:
        pp: The stages of the pipeline.
        tp: The ranks that share this stage's layers.
        ep: Those among which experts are spread, each whole; a line of one where they are not.
    """

    pp: Axis = field(default_factory=Axis)
    tp: Axis = field(default_factory=Axis)
    ep: Axis = field(default_factory=Axis)

    @classmethod
    def at(cls, rank: int, pp: int, tp: int, spread_experts: bool = False) -> Mesh:
        """Return the place of a rank of pp * tp; experts are spread among the tp ranks or not."""
        assert 0 <= rank < pp * tp
        part = Axis(rank % tp, tp)
        return cls(Axis(rank // tp, pp), part, part if spread_experts else Axis())

    @property
    def tp_ranks(self) -> range:
        """Who shares this stage's layers."""
        return range(self.pp.rank * self.tp.size, (self.pp.rank + 1) * self.tp.size)

    @property
    def pp_ranks(self) -> range:
        """Its like in every stage."""
        return range(self.tp.rank, self.pp.size * self.tp.size, self.tp.size)

    @property
    def reports(self) -> bool:
        """Whether the results of steps come from this rank: the first of the last stage."""
        return self.pp.is_last and self.tp.is_first


def cut(count: int, stages: int, sizes: tuple[int, ...] = ()) -> list[range]:
    """Divide layers 0 .. count - 1 among stages, evenly or by their numbers `sizes`.

    Raises:
        ValueError: They do not come out so; the message says which numbers do.
    """
    if not sizes:
        if stages > count:
            raise ValueError(
                f"pipeline_parallel_size {stages} exceeds the model's {count} layers; "
                f"use {count} or less"
            )
        ends = [count * stage // stages for stage in range(stages + 1)]
    else:
        ends = [sum(sizes[:stage]) for stage in range(len(sizes) + 1)]
        if ends[-1] != count:
            raise ValueError(
                f"pipeline_layers {', '.join(map(str, sizes))} must add up to the model's {count} "
                f"layers, not to {ends[-1]}"
            )
    return [range(first, end) for first, end in pairwise(ends)]
