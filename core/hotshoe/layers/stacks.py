"""Checkpoints that have a matrix of every expert in one tensor, for layers that ask for one expert.

Source of the layout: checkpoints as transformers 5 writes them without looking back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from torch import Tensor

from hotshoe.errors import CheckpointError

if TYPE_CHECKING:
    from hotshoe.loader.sources import Described, Stored, TensorSource

#: For each expert the names of matrices whose rows, of equal number, are those of its part.
Parts: TypeAlias = "tuple[tuple[str, ...], ...]"


def unstacked(
    source: TensorSource,
    known_as: Callable[[str], str],
    stacks: Mapping[str, Parts],
    transposed: Collection[str] = (),
) -> TensorSource:
    """Return a source that has each expert's matrices, as views, in the place of stacked ones.

    Args:
        source: The checkpoint.
        known_as: Maps its names to those of layers.
        stacks: Tensors [num_experts, rows, columns], or [num_experts * rows, columns], by those
            names.
        transposed: Those of them in which an expert has [columns, rows].
    """
    found = {name: known for name in source.names() if (known := known_as(name)) in stacks}
    turned = frozenset(name for name, known in found.items() if known in transposed)
    return _Unstacked(
        source, {name: stacks[known] for name, known in found.items()}, known_as, turned
    )


class _Unstacked:
    """See `unstacked`."""

    def __init__(
        self,
        source: TensorSource,
        stacks: Mapping[str, Parts],
        known_as: Callable[[str], str],
        transposed: frozenset[str],
    ) -> None:
        self._source, self._transposed = source, transposed
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
        if tensor.dim() == 2 and len(tensor) % experts == 0:
            tensor = tensor.reshape(experts, -1, tensor.shape[1])
        if whole in self._transposed:
            tensor = tensor.mT
        if tensor.dim() != 3 or len(tensor) != experts or tensor.shape[1] % parts:
            raise CheckpointError(
                f"{whole} has shape {list(tensor.shape)}, but config.json means {experts} experts "
                f"of {parts} matrices each; checkpoint and configuration do not belong together"
            )
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
