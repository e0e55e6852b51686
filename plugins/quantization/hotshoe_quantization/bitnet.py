"""Checkpoints of BitNet: matrices of the values -1, 0 and 1 with one scale each, and x in 8 bits.

A byte holds a value of each quarter of the rows, so that no rank could cut it. Files that are to be
quantized online have plain numbers. Either becomes integers before a layer asks. Sources: Ma et al.
2024, arXiv:2402.17764, and the config.json and tensors of published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.loader.sources import Described, TensorSource
from hotshoe.slots import QuantSpec
from hotshoe_quantization.elements import Elements
from hotshoe_quantization.stored import StoredFormat
from hotshoe_quantization.values import Values, skips

SCHEME = Elements(QuantSpec("int8", "tensor"), QuantSpec("int8", "token", dynamic=True))
#: Values of a byte.
QUARTERS = 4
#: Least scale of numbers that are quantized online.
LEAST = 1e-5
WEIGHT, SCALE = ".weight", ".weight_scale"
#: Layers that files leave plain without saying it.
PLAIN = ("lm_head", "embed_tokens")


class BitNet(StoredFormat):
    """See `hotshoe.layers.WeightFormat`.

    Args:
        kept: Names of layers of plain numbers.
        inverse: The files' scales divide.
        online: Files have plain numbers.
    """

    def __init__(self, kept: tuple[str, ...], inverse: bool, online: bool) -> None:
        super().__init__(lambda layer: None if skips(kept, layer) else SCHEME)
        self._inverse, self._online = inverse, online

    def decode(self, source: TensorSource) -> TensorSource:
        """Return a source that has integers, and a scale for each matrix of them."""

        def means(layer: str) -> bool:
            return self.scheme(layer) is not None

        return _Decoded(source, means, self._inverse, self._online)


class _Decoded:
    """A source whose matrices are int8, with a scale that multiplies.

    Args:
        source: The files'.
        means: Tells by name which layers are quantized.
        inverse, online: As `BitNet` says.
    """

    def __init__(
        self, source: TensorSource, means: Callable[[str], bool], inverse: bool, online: bool
    ) -> None:
        self._source, self._inverse, self._online = source, inverse, online
        known = list(source.names())
        layers = [n.removesuffix(WEIGHT) for n in known if n.endswith(WEIGHT)]
        #: Norms have one axis.
        self._layers = {
            layer for layer in layers if means(layer) and source.tensor(layer + WEIGHT).dim() == 2
        }
        self._names: list[str] = []
        for name in known:
            if online and name.endswith(WEIGHT) and name.removesuffix(WEIGHT) in self._layers:
                self._names.append(name.removesuffix(WEIGHT) + SCALE)
            self._names.append(name)
        if isinstance(source, Described):
            self.stored = lambda name: source.stored(self._home(name))

    def names(self) -> Iterable[str]:
        """Return the names, a matrix's scale among them."""
        return self._names

    def _home(self, name: str) -> str:
        """Return the tensor that one is made of."""
        return name.removesuffix(SCALE) + WEIGHT if self._online and name.endswith(SCALE) else name

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as it is, integers, or a scale.

        Raises:
            CheckpointError: A matrix has other values.
        """
        tensor = self._source.tensor(self._home(name))
        if name.endswith(SCALE) and name.removesuffix(SCALE) in self._layers:
            if self._online:
                return _mean(tensor)
            return tensor.float().reciprocal() if self._inverse else tensor.float()
        if not name.endswith(WEIGHT) or name.removesuffix(WEIGHT) not in self._layers:
            return tensor
        if self._online:
            return (tensor.float() / _mean(tensor)).round_().clamp_(-1, 1).to(torch.int8)
        values = _unpacked(tensor) if tensor.dtype == torch.uint8 else tensor
        if values.numel() and not -1 <= int(values.min()) <= int(values.max()) <= 1:
            raise CheckpointError(
                f"{name} has values beside -1, 0 and 1; fetch or export the checkpoint again"
            )
        return values.to(torch.int8)

    def taken(self, name: str) -> None:
        """Let go of what a tensor was made of; a matrix is read behind its own scale."""
        if self._home(name) == name:
            self._source.taken(name)


def _mean(weight: Tensor) -> Tensor:
    """Return the scale [1] of a matrix."""
    return weight.float().abs().mean().clamp_(min=LEAST).view(1)


def _unpacked(octets: Tensor) -> Tensor:
    """Return values [4 * rows, columns] int8 of bytes [rows, columns]."""
    parts = [(octets >> 2 * i) & 3 for i in range(QUARTERS)]
    return torch.cat(parts).to(torch.int8) - 1


def read(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of BitNet.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    kind = values.one_of(("bitlinear", "autobitlinear"), "linear_class", default="bitlinear")
    mode = values.one_of(("offline", "online"), "quantization_mode", default="offline")
    if values.flag("use_rms_norm", default=False):
        values.refuse("use_rms_norm", "must be false: no layer norms x by itself")
    if kind == "bitlinear" and mode == "online":
        values.refuse("quantization_mode", "must be offline with a linear_class of bitlinear")
    kept = PLAIN
    if values.get("modules_to_not_convert") is not None:
        kept = (*PLAIN, *values.names("modules_to_not_convert"))
    return BitNet(kept, inverse=kind == "bitlinear", online=mode == "online")
