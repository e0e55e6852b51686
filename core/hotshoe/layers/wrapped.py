"""Weight formats around others: what they answer themselves, and where they compute.

A format knows no device. `PlacedFormat` lets a costly one work where its results go, as the same
operations of PyTorch take a hundredth of the time on an accelerator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hotshoe.layers.formats import CostlyFormat, Shape, Share, Storage, TensorSpec, WeightFormat
from hotshoe.layers.weights import HOST
from hotshoe.platform import DeviceFacts


class WrappedFormat(WeightFormat):
    """A `WeightFormat` that answers as another does.

    Args:
        inner: The other.
    """

    def __init__(self, inner: WeightFormat) -> None:
        self._inner = inner
        self.online, self.unused, self.renames = inner.online, inner.unused, inner.renames
        self.kv_scales, self.unpack, self.decode = inner.kv_scales, inner.unpack, inner.decode
        self.survey, self.same_names = inner.survey, inner.same_names
        self.join, self.by_expert = inner.join, inner.by_expert

    def storage(self, layer: str, shape: Shape) -> Storage | None:
        """Return the format's answer."""
        return self._inner.storage(layer, shape)

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the format's answer."""
        return self._inner.tensors(layer, shape, share)

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Return the format's answer."""
        return self._inner.canonical(layer, tensors)


class PlacedFormat(WrappedFormat):
    """A costly format that computes on the device where its results go.

    Args:
        inner: What quantizes, by operations of PyTorch on whatever device its tensors are.
        facts: The device, whose arithmetic may round as no other's does.
    """

    def __init__(self, inner: CostlyFormat, facts: DeviceFacts) -> None:
        super().__init__(inner)
        self._recipe, self._facts = inner.recipe, facts

    def recipe(self, layer: str) -> str | None:
        """See `CostlyFormat`."""
        found = self._recipe(layer)
        kind = f"{self._facts.device.partition(':')[0]} {self._facts.arch}"
        return None if found is None else f"{found}, on {kind}"

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Return what the format makes there; what it leaves as it is stays where it is."""
        if self._recipe(layer) is None:
            return self._inner.canonical(layer, tensors)
        there = {name: [t.to(self._facts.device) for t in parts] for name, parts in tensors.items()}
        made = self._inner.canonical(layer, there)
        return {k: tensors[k] if v is there.get(k) else v for k, v in made.items()}


def placed_format(made: WeightFormat, facts: DeviceFacts) -> WeightFormat:
    """Return a format that computes on the device, if it computes for long and that is another."""
    if isinstance(made, CostlyFormat) and facts.device.partition(":")[0] != HOST.type:
        return PlacedFormat(made, facts)
    return made
