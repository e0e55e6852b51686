"""A family of GGUF files: what their architecture becomes, and what their tensors are called.

`families` has them all, by the name that files have for them. What converters have changed is
turned back: rows of q and k that rotate by neighboring pairs, norms that already hold Gemma's 1,
rows of q, k and v that were put into one matrix, and what `Family.turns` names.
Source: the tensor names of ggml's gguf.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from hotshoe_models.gguf.dense import Values
from hotshoe_models.gguf.metadata import Metadata
from hotshoe_models.gguf.names import NAMES, OUTER

if TYPE_CHECKING:
    from torch import Tensor

Turn: TypeAlias = "Callable[[Tensor, Mapping[str, Any]], Tensor]"

#: Tensors that become part of the configuration.
FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")
#: Of T5, those of the encoder have a name of their own.
_LAYER = re.compile(r"(?:enc\.)?blk\.(\d{1,9})\.([\w.]+?)(?:\.(weight|bias|scale))?")


#: Of q, of k and of v, or of the parts of another matrix.
Rows: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """Attributes:
    architecture: As `architectures` in config.json spells it.
    differences: Values of config.json beside those that all families have.
    names: Tensor names inside a layer, with or without their last part.
    pairs: Rows of q and k lie so that neighbors rotate together.
    norm_offset: What the file's norms hold more than the checkpoint's.
    latents: Keys and values are made of latents, and need not be of one size.
    narrow: Nor are they where values may be narrower than keys.
    turns: By a part of the checkpoint's names: what makes the checkpoint's tensor of the file's,
        or its rows of bytes of theirs, given the configuration. The norms among them hold nothing
        more.
    outer, layer: Tensor names outside of layers, and what a layer's names begin with.
    attends: Whether some layer attends.
    mixed: Layers differ in sizes; `differences` tells which has which.
    layers: Those from this number on predict further tokens; None for none.
    further: Whole names of what is beside such a layer; the layer's own then begin with `mtp.`.
    listed: Weights of one number in each layer, by the keys of metadata that list them.
    instead: By the end of a tensor's name: names inside a layer where files have that tensor.
    parted: What tells the rows of each layer's q, k and v, where these may be one matrix.
    rows: What it told.
    unpacked: Tells the checkpoint's names of matrices that layers take as plain numbers alone.
    """

    architecture: str
    differences: Callable[[Metadata], Values] = lambda meta: {}
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    pairs: bool = False
    norm_offset: float = 0.0
    latents: bool = False
    narrow: bool = False
    turns: Mapping[str, Turn] = field(default_factory=dict)
    outer: Mapping[str, str] = field(default_factory=lambda: OUTER)
    layer: str = "model.layers.{}."
    attends: bool = True
    mixed: bool = False
    layers: int | None = None
    further: Mapping[str, str] = field(default_factory=dict)
    listed: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    parted: Callable[[Metadata], Sequence[Rows]] | None = None
    rows: Sequence[Rows] = ()
    unpacked: Callable[[Metadata], Sequence[str]] = lambda meta: ()

    def known_as(self, name: str) -> str | None:
        """Return the checkpoint's name of a file's tensor.

        Returns:
            The name as it is where it is unknown; None for part of the configuration.
        """
        stem, _, kind = name.rpartition(".")
        if stem in FACTORS:
            return None
        if stem in self.outer:
            return f"{self.outer[stem]}.{kind}"
        layer = _LAYER.fullmatch(name)
        if layer is None:
            return name
        number, part, kind = layer.groups()
        ending, prefix = f".{kind}" if kind else "", self.layer.format(number)
        if self.layers is not None and int(number) >= self.layers:
            if part in self.further:
                return self.further[part] + ending
            prefix = f"mtp.layers.{int(number) - self.layers}."
        whole = self.names.get(part + ending)
        if whole is None and part in self.names:
            whole = self.names[part] + ending
        return name if whole is None else prefix + whole

    def rows_of(self, name: str) -> Rows:
        """Return the rows of each part of a file's tensor; none where they are equally many."""
        layer = _LAYER.fullmatch(name)
        known = layer is not None and int(layer[1]) < len(self.rows)
        return self.rows[int(layer[1])] if layer and known else ()


def unpaired(rows: Tensor, head_dim: int) -> Tensor:
    """Put rows [heads * d, ...], of which 2i and 2i + 1 rotate together, to i and i + d / 2."""
    if head_dim % 2 or rows.shape[0] % head_dim:
        return rows  # whose shape is refused where it is taken
    heads = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)
