"""A host's linear layer in the form of a weight format: which tensors it has, and the operation.

A host knows a layer's matrices by name and size, as a checkpoint does; a `WeightFormat` says of
each what tensors it has, and in which form kernels get them. Hosts of several ranks keep their own
layers where the checkpoint is quantized, as they would have to cut what only the format can cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from hotshoe.layers import OnlineFormat, Share, WeightFormat
from hotshoe.layers.formats import checked_format
from hotshoe.lazy import resolve_lazy
from hotshoe.loader.sources import Stream
from hotshoe.slots import LinearSpec
from hotshoe_bridge.operations import Operations

#: Method of a host that quantizes nothing, and of those that quantize while they load.
NAME = "hotshoe"


def methods(operations: Operations) -> dict[str, str]:
    """Return methods of quantization by the names that hosts get: plain, stored and at load."""
    online = operations.plugins.mapping("hotshoe_quantizations")
    return {NAME: ""} | {f"{NAME}_{name}": name for name in sorted(online)}


def format_of(operations: Operations, method: str, config: Mapping[str, Any]) -> WeightFormat:
    """Make the format of a checkpoint, or that of a method that quantizes at load.

    Args:
        operations: Whose plugins have formats.
        method: One of the values of `methods`.
        config: The checkpoint's `quantization_config`; empty where it is not quantized.

    Raises:
        UserError: Nothing reads such a checkpoint.
        ValueError: It is quantized already, and a method asks to do so at load.
    """
    stored = str(config.get("quant_method", ""))
    if stored and method:
        raise ValueError(f"quantization {NAME}_{method}: this checkpoint is quantized already")
    pick = operations.plugins.pick
    if method:
        found = pick("quantization", method, "hotshoe_quantizations")
        return checked_format(resolve_lazy(found)(), method)
    if stored:
        found = pick("weight format", stored, "hotshoe_weight_formats")
        made = checked_format(resolve_lazy(found)(dict(config)), stored)
        if made.renames or (made.decode is not None and not made.same_names):
            raise ValueError(
                f"quantization {NAME}: a {stored} checkpoint like this has tensors that hosts "
                "would not find by name; use the host's own method"
            )
        return made
    return OnlineFormat()


def needless(format: WeightFormat) -> list[str]:
    """Return the last parts of names of tensors that a checkpoint may have and nobody needs."""
    return [found[1] for one in format.unused if (found := re.fullmatch(r"\\\.(\w+)\$", one))]


def check_needless(format: WeightFormat, name: str, tensor: Tensor) -> None:
    """Check a tensor that nobody needs as long as it has nothing to say.

    Args:
        format: Whose `needless` tensors it belongs to.
        name: As the checkpoint has it.
        tensor: Such as the zero points of numbers that are symmetric.

    Raises:
        CheckpointError: It contradicts the checkpoint's configuration.
    """
    if format.decode is not None:
        format.decode(Stream([(name, tensor)]))


class Stacked:
    """Matrices that a host stacks by rows, such as those of q, k and v, in one format.

    Args:
        format: Of the checkpoint, or of the method.
        names: Of the matrices, as the checkpoint has them.
        sizes: Outputs of each.
        in_features: Inputs.
        dtype: Of x and y.

    Raises:
        ValueError: They are stored in several forms.
    """

    def __init__(
        self,
        format: WeightFormat,
        names: Sequence[str],
        sizes: Sequence[int],
        in_features: int,
        dtype: str,
    ) -> None:
        shapes = [(size, in_features) for size in sizes]
        storages = {format.storage(name, shape) for name, shape in zip(names, shapes, strict=True)}
        if len(storages) != 1:
            raise ValueError(f"{', '.join(names)} are stored in several forms")
        self.storage = storages.pop()
        weight, activation = (
            (self.storage.weight, self.storage.activation) if self.storage else (None, None)
        )
        self.spec = LinearSpec(in_features, sum(sizes), dtype, weight=weight, activation=activation)
        self._format, self._names = format, tuple(names)
        made_by = format if self.storage else OnlineFormat()
        self._wanted = [
            made_by.tensors(name, shape, Share((slice(0, shape[0]),), slice(0, in_features)))
            for name, shape in zip(names, shapes, strict=True)
        ]
        self._taken: dict[str, dict[int, list[Tensor]]] = {kind: {} for kind in self.kinds}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The tensors of a matrix, by the last part of their names."""
        return tuple(self._wanted[0])

    def take(self, kind: str, part: int, tensor: Tensor) -> None:
        """Take a tensor of one of the matrices.

        Raises:
            ValueError: It has another shape or type than the format says.
        """
        spec = self._wanted[part][kind]
        if tuple(tensor.shape) != spec.shape or tensor.dtype not in spec.dtypes:
            types = " or ".join(sorted(str(one) for one in spec.dtypes))
            raise ValueError(
                f"{self._names[part]}.{kind} is {tuple(tensor.shape)} of {tensor.dtype}, and "
                f"{spec.shape} of {types} is meant"
            )
        self._taken[kind][part] = [piece.clone() for piece in spec.keep(tensor)]

    def operation(self, operations: Operations) -> Any:
        """Build the operation of what was taken.

        Raises:
            ValueError: A tensor never came.
        """
        for kind, parts in self._taken.items():
            for part, name in enumerate(self._names):
                if part not in parts:
                    raise ValueError(f"the checkpoint has no {name}.{kind}")
        tensors = {
            kind: [piece for part in sorted(parts) for piece in parts[part]]
            for kind, parts in self._taken.items()
        }
        made = self._format.canonical(self._names[0], tensors) if self.storage else tensors
        op = operations.choose("linear", self.spec)
        op.load(made)
        for parts in self._taken.values():
            parts.clear()
        return op


def multiplied(op: Any, x: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x of any leading dimensions, and add a bias that the host kept."""
    y: Tensor = op(x.reshape(-1, x.shape[-1]).contiguous())
    y = y.view(*x.shape[:-1], y.shape[-1])
    return y if bias is None else y + bias
