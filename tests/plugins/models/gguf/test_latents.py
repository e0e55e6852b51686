"""Matrices of latents from halves of files, or as files have them."""

import pytest
import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.loader.sources import Stored
from hotshoe_models.gguf.latents import WholeLatents

LAYER = "model.layers.0.self_attn."
KV, K, V = (f"{LAYER}{part}_b_proj.weight" for part in ("kv", "k", "v"))


class Source:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors, self.let_go = tensors, []
        self.names, self.tensor = tensors.keys, tensors.__getitem__
        self.taken = self.let_go.append

    def stored(self, name: str) -> Stored:
        return Stored("F32", 4 * self._tensors[name].numel())


def matrix() -> tuple[Tensor, dict[str, Tensor]]:
    """Return the matrix of 3 heads with 5 channels of keys and 2 of values, and its halves."""
    whole = torch.randn(3, 5 + 2, 4)
    keys, values = whole.split((5, 2), 1)
    return whole.flatten(0, 1), {K: keys.transpose(1, 2), V: values}


def test_halves_become_one_matrix() -> None:
    whole, halves = matrix()
    source = Source({"other": torch.ones(2), **halves})
    joined = WholeLatents(source)
    assert list(joined.names()) == ["other", KV]
    assert torch.equal(joined.tensor(KV), whole) and torch.equal(
        joined.tensor("other"), torch.ones(2)
    )
    assert (
        joined.stored(KV) == Stored("F32", 4 * whole.numel()) and joined.stored("other").nbytes == 8
    )
    joined.taken(KV)
    joined.taken("other")
    assert source.let_go == [K, V, "other"]


def test_files_with_both_forms_give_the_whole_one() -> None:
    whole, halves = matrix()
    joined = WholeLatents(Source({**halves, KV: whole}))
    assert list(joined.names()) == [KV] and joined.tensor(KV) is whole


def test_half_of_a_pair_is_nobodys_tensor() -> None:
    _, halves = matrix()
    assert list(WholeLatents(Source({K: halves[K]})).names()) == [K]


def test_halves_must_fit_each_other() -> None:
    _, halves = matrix()
    joined = WholeLatents(Source({K: halves[K][:2], V: halves[V]}))
    with pytest.raises(CheckpointError, match=r"latents do not fit: \[2, 4, 5\] and \[3, 2, 4\]"):
        joined.tensor(KV)
