"""Tensors that layers ask for and a checkpoint has in parts, or in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from hotshoe.layers import BuildContext

if TYPE_CHECKING:
    from hotshoe.loader.sources import TensorSource

#: Names of what a tensor is made of, and what makes it of them.
Recipe: TypeAlias = tuple[tuple[str, ...], Callable[..., Tensor]]
#: Maps the names of a checkpoint to recipes, by the names of what they make.
Recipes: TypeAlias = Callable[[Iterable[str]], Mapping[str, Recipe]]


def remake(ctx: BuildContext, recipes: Recipes) -> None:
    """Let a checkpoint have tensors that are made while they are read, in the place of others."""
    before = ctx.weights.decode

    def decode(source: TensorSource) -> TensorSource:
        plain = source if before is None else before(source)
        return Remade(plain, recipes(plain.names()))

    ctx.weights.decode = decode


class Remade:
    """See `hotshoe.loader.TensorSource`.

    Args:
        source: Of the parts.
        recipes: By the names of what they make. No part has a name of its own any more.
    """

    def __init__(self, source: TensorSource, recipes: Mapping[str, Recipe]) -> None:
        self._source, self._recipes = source, recipes
        self._first = {parts[0]: name for name, (parts, _) in recipes.items()}
        self._parts = {part for parts, _ in recipes.values() for part in parts}

    def names(self) -> Iterable[str]:
        """Return the source's names, each recipe in the place of its first part."""
        for name in self._source.names():
            if name in self._first:
                yield self._first[name]
            elif name not in self._parts:
                yield name

    def tensor(self, name: str) -> Tensor:
        """Return a tensor of the source, or make one."""
        if name not in self._recipes:
            return self._source.tensor(name)
        parts, make = self._recipes[name]
        return make(*(self._source.tensor(part) for part in parts))

    def taken(self, name: str) -> None:
        """Hear that a tensor has been used."""
        parts, _ = self._recipes.get(name, ((name,), None))
        for part in parts:
            self._source.taken(part)
