"""A plugin's weight format, called so that its faults bear the plugin's name.

A format is called while a model is built and while weights load. Without this, the plugin that
describes the model, or the kernel that takes the weights, would be blamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hotshoe.foreign import foreign
from hotshoe.layers.formats import Shape, Share, Storage, TensorSpec, WeightFormat
from hotshoe.layers.wrapped import WrappedFormat
from hotshoe.slots import QuantSpec

#: What comes along with a weight, a tensor for each part of it.
_SCALES = ("weight_scale", "weight_zero_point")


class GuardedFormat(WrappedFormat):
    """A `WeightFormat` around a plugin's.

    Args:
        inner: The plugin's.
        guard: Makes what the plugin raises an error in its name.
    """

    def __init__(self, inner: WeightFormat, guard: foreign) -> None:
        with guard:
            super().__init__(inner)
        self._guard = guard
        self.unpack = inner.unpack and guard(inner.unpack)
        self.decode = inner.decode and guard(inner.decode)
        self.survey = inner.survey and guard(inner.survey)
        self.join = inner.join and guard(inner.join)
        self._plain: dict[str, tuple[QuantSpec, int]] = {}

    def storage(self, layer: str, shape: Shape) -> Storage | None:
        """Return the plugin's answer, if it is one.

        Raises:
            PluginError: It failed, or its answer is none.
        """
        with self._guard:
            found = self._inner.storage(layer, shape)
            if not isinstance(found, Storage | None):
                raise TypeError(f"storage() returned {type(found).__name__}, not a Storage or None")
            for form in (found, found and found.native):
                if form is not None:
                    _check_operand("weight", form.weight)
                    _check_operand("activation", form.activation or form.weight)
        return found

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the plugin's answer, if it is one.

        Raises:
            PluginError: It failed, or its answer is none.
        """
        with self._guard:
            found = self._inner.tensors(layer, shape, share)
            if not (isinstance(found, Mapping) and found):
                raise TypeError(f"tensors() returned {found!r}, not TensorSpecs by name")
            for name, spec in found.items():
                if not isinstance(spec, TensorSpec):
                    raise TypeError(f"tensors() has {spec!r} under {name!r}, not a TensorSpec")
            stored = self._inner.storage(layer, shape)
            if stored is not None and not stored.weight.packing:
                self._plain[layer] = stored.weight, share.columns.stop - share.columns.start
        return found

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Return the plugin's answer, if a kernel can take it.

        Raises:
            PluginError: It failed, or its answer is none.
        """
        with self._guard:
            found = self._inner.canonical(layer, tensors)
            if not isinstance(found, Mapping) or "weight" not in found:
                raise TypeError(f"canonical() of {layer} returned no parts of a weight")
            for name, parts in found.items():
                if isinstance(parts, Tensor) or not all(isinstance(p, Tensor) for p in parts):
                    raise TypeError(f"canonical() of {layer} has no list of tensors as {name}")
            self._check_weight(layer, found)
        return found

    def _check_weight(self, layer: str, found: Mapping[str, Sequence[Tensor]]) -> None:
        """Refuse parts of a weight that no kernel could multiply by; packed ones are its affair."""
        quant, columns = self._plain.get(layer, (None, 0))
        if quant is None:
            return
        weight = found["weight"]
        for part in weight:
            if part.dim() != 2 or part.shape[1] != columns:
                shape = f"{list(part.shape)}, not [rows, {columns}]"
                raise ValueError(f"canonical() of {layer} has a weight {shape}")
        for name in set(_SCALES).intersection(found):
            sizes = [len(scale) if scale.dim() else 1 for scale in found[name]]
            rows = [len(part) for part in weight]
            alike = len(sizes) == len(rows) and all(
                size in (1, count) for size, count in zip(sizes, rows, strict=True)
            )
            if not alike and quant.granularity != "block":
                raise ValueError(f"canonical() of {layer} has {name} of {sizes} for {rows} rows")


def _check_operand(name: str, quant: object) -> None:
    if not isinstance(quant, QuantSpec):
        raise TypeError(f"storage() has {quant!r} as {name}, not a QuantSpec")
