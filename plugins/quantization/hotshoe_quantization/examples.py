"""Examples of stored formats for `hotshoe conformance`: the tensors of a file, and their meaning.

Each is made from the formats' descriptions, not by the readers of this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ROWS, COLUMNS, GROUP = 96, 256, 64
#: Bits of a word, and where AWQ puts each of eight columns in it.
WORD, HALVES = 32, (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True, slots=True)
class Example:
    """See `hotshoe_conformance.formats.Example`."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    weight: Tensor


def awq(source: torch.Generator) -> Iterator[Example]:
    """Yield four bits by group, eight columns of outputs in a word, in an order of their own."""
    values, zeros, scales, weight = _grouped(source)
    tensors = {
        "qweight": _words(values.T, HALVES),
        "qzeros": _words(zeros.T, HALVES),
        "scales": scales.T.contiguous(),
    }
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
    yield Example(config, tensors, weight)


def gptq(source: torch.Generator) -> Iterator[Example]:
    """Yield four bits by group, eight inputs in a word; zero points are stored less one."""
    values, zeros, scales, weight = _grouped(source)
    tensors = {
        "qweight": _words(values).T.contiguous(),
        "qzeros": _words((zeros - 1).T),
        "scales": scales.T.contiguous(),
        "g_idx": torch.arange(COLUMNS, dtype=torch.int32) // GROUP,
    }
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False}
    yield Example({**config, "desc_act": False}, tensors, weight)


def _grouped(source: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw values [rows, columns], zero points and scales [rows, groups], and what they mean."""
    values = torch.randint(16, (ROWS, COLUMNS), generator=source)
    zeros = torch.randint(1, 16, (ROWS, COLUMNS // GROUP), generator=source)
    scales = (torch.rand(ROWS, COLUMNS // GROUP, generator=source) + 0.5).half() / 64
    wide = zeros.repeat_interleave(GROUP, 1), scales.float().repeat_interleave(GROUP, 1)
    return values, zeros, scales, (values - wide[0]) * wide[1]


def _words(values: Tensor, places: Sequence[int] = range(8)) -> Tensor:
    """Put eight numbers of four bits into each word; number i at place `places[i]`."""
    runs = values.reshape(*values.shape[:-1], -1, 8).long()
    shifts = torch.tensor([4 * place for place in places])
    words = (runs << shifts).sum(-1)
    return torch.where(words < 1 << (WORD - 1), words, words - (1 << WORD)).int()
