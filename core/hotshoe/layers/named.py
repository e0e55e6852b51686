"""Asks a quantized checkpoint's format about matrices by the names that its files have.

A model may know matrices by other names than the files, and a description of quantization may list
either. So the format is asked by both. Where its answers differ, the tensors beside the matrix say
whether it is quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from hotshoe.layers.formats import Shape, Share, Storage, TensorSpec, WeightFormat
from hotshoe.layers.weights import WeightTable
from hotshoe.layers.wrapped import WrappedFormat

#: Parts of a matrix that is not quantized.
PLAIN_PARTS = frozenset(("weight", "bias"))


class NamedFormat(WrappedFormat):
    """A `WeightFormat` around a checkpoint's. Nothing is renamed before `follow` is called.

    Args:
        inner: The checkpoint's.
        names: Of the files' tensors.
    """

    def __init__(self, inner: WeightFormat, names: Iterable[str]) -> None:
        super().__init__(inner)
        self._parts: dict[str, set[str]] = {}
        for name in names:
            layer, _, part = name.rpartition(".")
            self._parts.setdefault(layer, set()).add(part)
        self._table: WeightTable | None = None
        self._known: tuple[int, dict[str, str]] = (0, {})
        self._asked: dict[str, str] = {}
        if inner.unpack is not None:
            self.unpack = self._by_name(inner.unpack)

    def follow(self, table: WeightTable) -> None:
        """Take the table that has the names of layers beside those of files."""
        self._table, self._known, self._asked = table, (0, {}), {}

    def storage(self, layer: str, shape: Shape) -> Storage | None:
        """Return the format's answer for the name that fits the files."""
        found = self._inner.storage(layer, shape)
        name = self._name_in_files(layer)
        if name == layer:
            return found
        other = self._inner.storage(name, shape)
        quantized = not self._parts[name] <= PLAIN_PARTS
        if other != found and (other is not None) != quantized:
            name, other = layer, found
        self._asked[layer] = name
        return other

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the format's answer."""
        return self._inner.tensors(self._asked.get(layer, layer), shape, share)

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Return the format's answer."""
        return self._inner.canonical(self._asked.get(layer, layer), tensors)

    def _by_name(self, unpack: Callable[[str], None]) -> Callable[[str], None]:
        return lambda layer: unpack(self._asked.get(layer, layer))

    def _name_in_files(self, layer: str) -> str:
        """Return the name of a matrix in files; its own where they have no other."""
        if self._table is None or layer in self._parts:
            return layer
        count = self._table.num_renames
        if self._known[0] != count:  # a model may name more of them while it is built
            layers = {self._table.known_as(f"{name}.weight"): name for name in self._parts}
            self._known = count, layers
        return self._known[1].get(f"{layer}.weight", layer)


def follow(format: WeightFormat, table: WeightTable) -> None:
    """Let a table of weights and a format know each other's names."""
    table.follow(format)
    if isinstance(format, NamedFormat):
        format.follow(table)
