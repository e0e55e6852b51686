"""Checkpoints that have a matrix of every expert in one tensor, for layers that ask for one expert.

`unstacked` serves layers that know experts by name, `Stack` those that know the tensor of all.
Source of the former's layout: checkpoints as transformers 5 writes them without looking back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError

if TYPE_CHECKING:
    from hotshoe.layers.weights import Sink, WeightTable
    from hotshoe.loader.sources import Described, Stored, TensorSource

#: For each expert the names of matrices whose rows, of equal number, are those of its part.
Parts: TypeAlias = "tuple[tuple[str, ...], ...]"
#: What ends the name of a tensor of all experts, and which part of a matrix it holds.
KINDS = {"": "weight", "_scale": "weight_scale", "_scale_inv": "weight_scale_inv"}
#: What the names of stacks end with, one of gates, of ups and of second matrices.
_ENDS = ("gate_proj", "up_proj", "down_proj")


def stacks_of(templates: Sequence[str], num_experts: int) -> dict[str, Parts]:
    """Return the tensors that transformers 5 writes of all experts, and what each consists of; also
    those of gates and of ups apart, as Step 3.5 is published.

    Args:
        templates: Names of one expert's matrices, with {} for its number; its second one is last.
        num_experts: How many there are.
    """
    *first, last = templates
    block, found = last.partition("{}")[0], dict[str, Parts]()
    whole = [("gate_up_proj", first)] if len(first) > 1 else []
    whole += [
        (ends, [part]) for ends, part in zip(_ENDS[-len(templates) :], templates, strict=True)
    ]
    for name, parts in whole:
        for ending, kind in KINDS.items():
            named = (
                tuple(f"{part.format(i)}.{kind}" for part in parts) for i in range(num_experts)
            )
            found[block + name + ending] = tuple(named)
    return found


def unstacked(
    source: TensorSource,
    known_as: Callable[[str], str],
    stacks: Mapping[str, Parts],
    transposed: Collection[str] = (),
    interleaved: Collection[str] = (),
) -> TensorSource:
    """Return a source that has each expert's matrices, as views, in the place of stacked ones.

    Args:
        source: The checkpoint.
        known_as: Maps its names to those of layers.
        stacks: Tensors [num_experts, rows, columns], or [num_experts * rows, columns], by those
            names; or one number for each expert, whose matrices share it.
        transposed: Those of them in which an expert has [columns, rows].
        interleaved: Those in which rows of an expert's matrices take turns.
    """
    found = {name: known for name in source.names() if (known := known_as(name)) in stacks}

    def of(names: Collection[str]) -> frozenset[str]:
        return frozenset(name for name, known in found.items() if known in names)

    parts = {name: stacks[known] for name, known in found.items()}
    return _Unstacked(source, parts, known_as, of(transposed), of(interleaved))


class _Unstacked:
    """See `unstacked`."""

    def __init__(
        self,
        source: TensorSource,
        stacks: Mapping[str, Parts],
        known_as: Callable[[str], str],
        transposed: frozenset[str],
        interleaved: frozenset[str],
    ) -> None:
        self._source, self._transposed, self._interleaved = source, transposed, interleaved
        self._names: list[str] = []
        #: Of a matrix: the tensor that it lies in, its expert, and which of the expert's it is.
        self._places: dict[str, tuple[str, int, int]] = {}
        self._counts = {name: (len(parts), len(parts[0])) for name, parts in stacks.items()}
        self._last = {parts[-1][-1]: name for name, parts in stacks.items()}
        plain = {known_as(name): name for name in source.names() if name not in stacks}
        for name in source.names():
            if name not in stacks:
                self._names.append(name)
                continue
            for expert, one in enumerate(stacks[name]):
                for at, part in enumerate(one):
                    if part in plain:
                        raise CheckpointError(
                            f"{plain[part]} and {name} are the same weight; keep one"
                        )
                    self._places[part] = (name, expert, at)
                    self._names.append(part)
        if hasattr(source, "stored"):
            self.stored = self._stored

    def names(self) -> Iterable[str]:
        """Return the source's names, those of a stack's matrices in its place."""
        return self._names

    def tensor(self, name: str) -> Tensor:
        """Return a tensor, or a view of a stack.

        Raises:
            CheckpointError: The stack does not consist of so many matrices.
        """
        if name not in self._places:
            return self._source.tensor(name)
        whole, expert, at = self._places[name]
        tensor, (experts, parts) = self._source.tensor(whole), self._counts[whole]
        if tensor.numel() == experts:  # scales, one for all of an expert's matrices in it
            return tensor.reshape(experts, 1, 1)[expert]
        if tensor.dim() == 2 and len(tensor) % experts == 0:
            tensor = tensor.reshape(experts, -1, tensor.shape[1])
        if whole in self._transposed:
            tensor = tensor.mT
        if tensor.dim() != 3 or len(tensor) != experts or tensor.shape[1] % parts:
            raise CheckpointError(
                f"{whole} has shape {list(tensor.shape)}, but config.json means {experts} experts "
                f"of {parts} matrices each; checkpoint and configuration do not belong together"
            )
        if whole in self._interleaved:
            return tensor[expert, at::parts]
        rows = tensor.shape[1] // parts
        return tensor[expert, at * rows : (at + 1) * rows]

    def taken(self, name: str) -> None:
        """Let go of a stack with its last matrix."""
        if name not in self._places:
            self._source.taken(name)
        elif name in self._last:
            self._source.taken(self._last[name])

    def _stored(self, name: str) -> Stored:
        """Return type and size in the file."""
        whole, _, _ = self._places.get(name, (name, 0, 0))
        stored = cast("Described", self._source).stored(whole)
        experts, parts = self._counts.get(whole, (1, 1))
        return stored._replace(nbytes=stored.nbytes // (experts * parts))


@dataclass(frozen=True, slots=True)
class Stack:
    """Hands a tensor of all experts to those who take one expert's.

    Attributes:
        inner: What experts ask for.
        parts: Names in it, for each of this rank's experts.
        transposed, interleaved: As `Stacked` says, of this tensor.
        experts: Which ones these are.
        num_experts: In the tensor.
    """

    inner: WeightTable
    parts: list[list[str]]
    transposed: bool
    interleaved: bool
    experts: tuple[int, ...]
    num_experts: int

    @property
    def shape(self) -> tuple[int, ...]:
        shapes = [self.inner.expected[name].shape for name in self.parts[0]]
        one = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        return (self.num_experts, *(reversed(one) if self.transposed else one))

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        return self.inner.expected[self.parts[0][0]].dtypes

    @property
    def num_rows(self) -> int:
        """Outputs of this rank's part of an expert's matrix."""
        places = self.inner.expected[self.parts[0][-1]].places
        return max(place.rows[1] for place in places if place is not None)

    @property
    def numbers(self) -> int | None:
        """See `Place.numbers`."""
        places = (place for name in self.parts[0] for place in self.inner.expected[name].places)
        counts = [place.numbers for place in places if place and place.numbers is not None]
        return self.num_experts * sum(counts) if counts else None

    def __call__(self, tensor: Tensor) -> None:
        for names, expert in zip(self.parts, self.experts, strict=True):
            rows = tensor[expert].T if self.transposed else tensor[expert]
            count = len(names)
            if self.interleaved:
                pieces = [rows[i::count] for i in range(count)]
            else:
                pieces = list(rows.tensor_split(count))
            for name, piece in zip(names, pieces, strict=True):
                self.inner.feed(name, piece)


class Scaled:
    """Waits for a tensor of all experts' matrices and for their factors, in any order."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._weight: Tensor | None = None
        self._scale: Tensor | None = None

    def take_weight(self, tensor: Tensor) -> None:
        """Take [num_experts, rows, columns]."""
        self._weight = tensor
        self._hand_on()

    def take_scale(self, tensor: Tensor) -> None:
        """Take [num_experts]."""
        self._scale = tensor
        self._hand_on()

    def _hand_on(self) -> None:
        if self._weight is not None and self._scale is not None:
            scaled = self._weight * self._scale[:, None, None]
            self._sink(scaled.to(self._weight.dtype))
            self._weight = self._scale = None
