"""The tensors of GGUF files as a source of weights, in the form that layers want."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hotshoe.loader.sources import Stored
from hotshoe_models.gguf.blocks import dequantize
from hotshoe_models.gguf.families import Family
from hotshoe_models.gguf.header import Header

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Tensors:
    """Tensors by the names of the checkpoint that the files were made from.

    Args:
        headers: Of all files.
        family: Whose names they have.
        config: What config.json would hold.
        dtype: Of numbers that are packed in the file.
        packed: Names of matrices that are wanted as bytes, their rows one after the other.
    """

    def __init__(
        self,
        headers: list[Header],
        family: Family,
        config: Mapping[str, Any],
        dtype: torch.dtype,
        packed: Collection[str] = (),
    ) -> None:
        self._family, self._config, self._dtype = family, config, dtype
        self._packed = packed
        self._home: dict[str, tuple[Header, str]] = {}
        for header in headers:
            for name in header.tensors:
                known = family.known_as(name)
                if known is not None:
                    self._home[known] = (header, name)

    def names(self) -> Iterable[str]:
        """Return the checkpoint's names, file by file, each in the order of its data."""
        return list(self._home)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor: a view of the file where it holds plain numbers, as they are wanted."""
        place = self._home[name]
        found = self._rows(*place) if name in self._packed else self._numbers(*place)
        if self._family.norm_offset and name.endswith("norm.weight"):
            return found - self._family.norm_offset
        heads = self._paired(name)
        return found if heads is None else unpaired(found, heads)

    def taken(self, name: str) -> None:
        """Let go of the file's pages up to there."""
        header, called = self._home[name]
        header.release_through(called)

    def stored(self, name: str) -> Stored:
        """Return type and size in the file."""
        header, called = self._home[name]
        info = header.tensors[called]
        return Stored(info.type.name, info.end - info.begin)

    def _rows(self, header: Header, name: str) -> Tensor:
        """Return the bytes of a matrix [rows, bytes of a row]."""
        _, shape, begin, end = header.tensors[name]
        raw = torch.frombuffer(header.map, dtype=torch.uint8, offset=begin, count=end - begin)
        return raw.view(shape[0], -1)

    def _numbers(self, header: Header, name: str) -> Tensor:
        kind, shape, begin, end = header.tensors[name]
        if kind.name in PLAIN and begin % kind.nbytes == 0:
            dtype, count = PLAIN[kind.name], (end - begin) // kind.nbytes
            return torch.frombuffer(header.map, dtype=dtype, offset=begin, count=count).view(shape)
        raw = torch.frombuffer(header.map, dtype=torch.uint8, offset=begin, count=end - begin)
        if kind.name in PLAIN:  # an alignment below the size of a number
            return raw.clone().view(PLAIN[kind.name]).view(shape)
        return dequantize(kind.name, raw.view(-1, kind.nbytes), self._dtype).view(shape)

    def _paired(self, name: str) -> int | None:
        """Return the heads of a matrix whose rows are to be put back; None for any other."""
        if not self._family.pairs:
            return None
        for part, key in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            if f".self_attn.{part}_proj." in name:
                return int(self._config[key])
        return None


def unpaired(rows: Tensor, heads: int) -> Tensor:
    """Put rows [heads * d, ...], of which 2i and 2i + 1 rotate together, to i and i + d / 2."""
    if rows.shape[0] % (2 * heads):
        return rows  # whose shape is refused where it is taken
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
