"""A quantized checkpoint's format hears the names that the files have."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from hotshoe.layers import Share, Storage, TensorSpec, WeightFormat
from hotshoe.layers.named import NamedFormat, follow
from hotshoe.layers.weights import WeightTable
from hotshoe.slots import QuantSpec

SHAPE = (6, 4)
WHOLE = Share((slice(0, 6),), slice(0, 4))
STORED = Storage(QuantSpec("int8", "channel"))
OURS, THEIRS = "model.layers.0.mlp.up", "h.0.block.up"


class Listed(WeightFormat):
    """A format that knows layers by a list, of plain ones or of others."""

    online = False

    def __init__(self, listed: str, plain: bool) -> None:
        self.listed, self.is_plain, self.asked = listed, plain, list[str]()
        self.unpack = self.asked.append

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        return None if (layer == self.listed) == self.is_plain else STORED

    def tensors(self, layer: str, shape: tuple[int, int], share: Share) -> Mapping[str, TensorSpec]:
        self.asked.append(layer)
        return {}

    def canonical(
        self, layer: str, tensors: Mapping[str, list[Tensor]]
    ) -> Mapping[str, list[Tensor]]:
        self.asked.append(layer)
        return {"weight": [torch.zeros(SHAPE)]}


@pytest.mark.parametrize("listed", [OURS, THEIRS])
@pytest.mark.parametrize("plain", [True, False], ids=["exceptions", "quantized ones"])
@pytest.mark.parametrize("quantized", [True, False])
def test_lists_have_either_name(listed: str, plain: bool, quantized: bool) -> None:
    """What the lists say counts where the files agree, by whichever name they say it."""
    parts = ("weight", "weight_scale") if quantized else ("weight",)
    inner = Listed(listed, plain)
    named, table = NamedFormat(inner, [f"{THEIRS}.{part}" for part in parts]), WeightTable()
    follow(named, table)
    table.rename(r"^h\.", "model.layers.")
    assert named.storage("lm_head", SHAPE) == (STORED if plain else None)  # it is not in the files
    table.rename(r"\.block\.", ".mlp.")  # a model may say so while it is built
    found = named.storage(OURS, SHAPE)
    assert found == (STORED if quantized else None)
    named.tensors(OURS, SHAPE, WHOLE), named.canonical(OURS, {})
    assert named.unpack is not None
    named.unpack(OURS)
    by = THEIRS if inner.storage(THEIRS, SHAPE) == found else OURS
    assert inner.asked == [by] * 3


def test_names_that_files_have_are_asked_alone() -> None:
    named = NamedFormat(Listed("a", True), ["a.weight", "a.weight_scale", "b.weight"])
    table = WeightTable()
    assert named.storage("a", SHAPE) is None  # nobody renames yet
    follow(named, table)
    table.rename("^a$", "b")
    assert named.storage("a", SHAPE) is None
    assert named.storage("b", SHAPE) == STORED
