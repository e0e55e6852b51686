"""Matrices of q, k and v that a checkpoint has in one, cut for ranks of its writer before they were
quantized: a rank's rows of q, k and v, then the next rank's, each rank with scales of its own.

Blocks of one scale do not end where heads do, so the parts are made plain while they are read. They
are one matrix of each layer, and mostly a hundredth of the file.
Source: the published tensors of MiMo V2.5, and issues about their loading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, Storage
from hotshoe.layers.wrapped import WrappedFormat
from hotshoe.loader.sources import Described, Stored, TensorSource

PARTS = ("q_proj", "k_proj", "v_proj")
#: Of a fused tensor: its layer, and what it is.
FUSED = re.compile(r"(.+)\.self_attn\.qkv_proj\.(weight|bias|weight_scale_inv)")
#: Rows and columns of one scale, where a file does not say it.
BLOCK = (128, 128)
PLAIN = re.compile(r"\.self_attn\.[qkv]_proj$")


@dataclass(frozen=True, slots=True)
class Cut:
    """How rows lie.

    Attributes:
        shares: Ranks of the writer.
        rows: Of each layer, by its name: those of q, of k and of v, of all ranks. Those of others
            stay as they are.
        block: Rows and columns of one scale.
    """

    shares: int
    rows: Mapping[str, tuple[int, int, int]]
    block: tuple[int, int]


def part_qkv(ctx: BuildContext, cut: Cut) -> None:
    """Let layers ask for q, k and v of plain numbers, where the checkpoint has them in one."""
    ctx.format = _PlainQkv(ctx.format)
    decode = ctx.weights.decode
    ctx.weights.decode = lambda found: _Parted(found if decode is None else decode(found), cut)


class _PlainQkv(WrappedFormat):
    """A format whose matrices of q, k and v are not quantized in the checkpoint."""

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the format's answer, but for the matrices that are parted."""
        plain = not self.online and PLAIN.search(layer) is not None
        return None if plain else super().storage(layer, shape)


class _Parted:
    """A source in which q, k and v of a layer are tensors of their own."""

    def __init__(self, source: TensorSource, cut: Cut) -> None:
        self._source, self._cut = source, cut
        #: Of a part: the tensor that it lies in, the layer, and which of its parts it is.
        self._places: dict[str, tuple[str, str, int]] = {}
        self._scales: dict[str, str] = {}
        self._names: list[str] = []
        for name in source.names():
            found = FUSED.fullmatch(name)
            if found is None or found[1] not in cut.rows:
                self._names.append(name)
            elif found[2] == "weight_scale_inv":
                self._scales[found[1]] = name
            else:
                stem = name.removesuffix(f"qkv_proj.{found[2]}")
                for at, part in enumerate(PARTS):
                    own = f"{stem}{part}.{found[2]}"
                    self._places[own] = (name, found[1], at)
                    self._names.append(own)

    def names(self) -> Iterable[str]:
        """Return the source's names, those of parts in the place of what holds them."""
        return self._names

    def tensor(self, name: str) -> Tensor:
        """Return a tensor; of a part plain numbers, float32 where they were quantized.

        Raises:
            CheckpointError: It has other rows than the configuration says, or as many scales.
        """
        if name not in self._places:
            return self._source.tensor(name)
        whole, layer, at = self._places[name]
        tensor, shares = self._source.tensor(whole), self._cut.shares
        rows = self._cut.rows[layer]
        if len(tensor) != sum(rows) or any(count % shares for count in rows):
            raise _mismatch(whole, tensor, f"{sum(rows)} rows in {shares} shares")
        begin = sum(rows[:at]) // shares
        end = begin + rows[at] // shares
        own = tensor.view(shares, -1, *tensor.shape[1:])[:, begin:end]
        if layer in self._scales and tensor.dim() == 2:
            own = own.float() * self._factors(layer, tensor, range(begin, end))
        return own.flatten(0, 1)

    def _factors(self, layer: str, tensor: Tensor, rows: range) -> Tensor:
        """Return the factor of each number of some rows of every share."""
        (height, width), shares = self._cut.block, self._cut.shares
        name = self._scales[layer]
        scales = self._source.tensor(name).float()
        wanted = (shares * -(-len(tensor) // (shares * height)), -(-tensor.shape[1] // width))
        if tuple(scales.shape) != wanted:
            raise _mismatch(name, scales, f"shape {list(wanted)}")
        each = scales.view(shares, -1, wanted[1])[:, torch.arange(rows.start, rows.stop) // height]
        return each.repeat_interleave(min(width, tensor.shape[1]), -1)[..., : tensor.shape[1]]

    def taken(self, name: str) -> None:
        """Let go of a fused tensor with its last part."""
        if name not in self._places:
            self._source.taken(name)
            return
        whole, layer, at = self._places[name]
        if at + 1 == len(PARTS):
            self._source.taken(whole)
            if layer in self._scales and whole.endswith(".weight"):
                self._source.taken(self._scales[layer])

    def stored(self, name: str) -> Stored:
        """Return type and size in the file."""
        whole, layer, at = self._places.get(name, (name, "", 0))
        assert isinstance(self._source, Described)
        found = self._source.stored(whole)
        if name not in self._places:
            return found
        rows = self._cut.rows[layer]
        return found._replace(nbytes=found.nbytes * rows[at] // sum(rows))


def block_of(quantization: object) -> tuple[int, int]:
    """Return the sizes of one scale's block, as a checkpoint's quantization says."""
    found = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
    if isinstance(found, list) and len(found) == 2 and all(type(n) is int and n > 0 for n in found):
        return found[0], found[1]
    return BLOCK


def _mismatch(name: str, tensor: Tensor, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{name} has shape {list(tensor.shape)}, but config.json means {wanted}; checkpoint and "
        "configuration do not belong together"
    )
