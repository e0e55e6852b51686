"""A costly format works where its results go; others are left as they are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.layers.formats import OnlineFormat, Storage
from hotshoe.layers.wrapped import placed_format
from hotshoe.platform import DeviceFacts
from hotshoe.slots import QuantSpec

#: A device that keeps no numbers, so that any operation elsewhere would show.
THERE = DeviceFacts("plain", "meta", "", "arch7", 1 << 30, 1)
STORAGE = Storage(QuantSpec("int8", "channel"))


class Halves(OnlineFormat):
    """Halves numbers of layers that it knows, and leaves all else."""

    def recipe(self, layer: str) -> str | None:
        return "halves" if layer == "known" else None

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        if layer != "known":
            return tensors
        return dict(tensors) | {"weight": [part / 2 for part in tensors["weight"]]}


def test_a_costly_format_computes_on_the_device() -> None:
    made = placed_format(Halves(STORAGE), THERE)
    tensors = {"weight": [torch.randn(3, 4), torch.randn(2, 4)], "bias": [torch.randn(3)]}
    found = made.canonical("known", tensors)
    assert [part.device.type for part in found["weight"]] == ["meta", "meta"]
    assert [part.shape for part in found["weight"]] == [(3, 4), (2, 4)]
    assert found["bias"] is tensors["bias"]
    assert made.canonical("other", tensors) is tensors


def test_it_answers_as_the_format_and_says_where_it_computes() -> None:
    made = placed_format(Halves(STORAGE), THERE)
    assert made.storage("known", (3, 4)) == STORAGE and made.online
    assert made.recipe("known") == "halves, on meta arch7" and made.recipe("other") is None


def test_on_the_host_and_without_a_recipe_nothing_changes() -> None:
    costly, plain = Halves(), OnlineFormat()
    assert placed_format(costly, replace(THERE, device="cpu")) is costly
    assert placed_format(plain, THERE) is plain
