"""How kernels are told of rows: which types are refused, and where rows lie."""

from dataclasses import replace

import torch

from hotshoe.slots import IndexerSpec
from hotshoe_cpu import rows


def test_types_and_parts_are_judged() -> None:
    spec = IndexerSpec(2, 64, 16, 4, "bfloat16", "int8", 16)
    assert not any(rows.refusals(spec).values())
    odd = [words for words, holds in rows.refusals(replace(spec, head_dim=8)).items() if holds]
    assert len(odd) == 1 and "multiples of 16 bytes" in odd[0]
    other = rows.refusals(replace(spec, kv_dtype="float64"))
    assert [words.split(" is")[0] for words, holds in other.items() if holds] == [
        "kv_dtype float64"
    ]


def test_strides_are_bytes() -> None:
    wide = torch.empty(5, 8, 48, dtype=torch.bfloat16)
    assert rows.strides(wide[:, :4, :40]) == (8 * 48 * 2, 48 * 2)
