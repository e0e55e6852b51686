"""Adapters of embedding and output matrix: scaled rows, and memory that there is not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hotshoe.errors import MemoryLimitError
from hotshoe.layers import AdapterLimits, AdapterTable, BuildContext, Changes, Embedding, Logits
from hotshoe.layers.adapters import Factors
from hotshoe.slots import SLOTS, Selector

VOCAB, SIZE = 6, 8


def ends(ctx: BuildContext, memory: int = 1 << 20) -> tuple[AdapterTable, Embedding, Logits]:
    """Build both ends with small random matrices."""
    small = Selector(SLOTS, [], replace(ctx.selector.facts, memory_bytes=memory))
    table = AdapterTable(AdapterLimits(2, 3))
    own = replace(ctx, adapters=table, cache_layers=[], weight_bytes=[], selector=small)
    embedding = Embedding(own, "e", VOCAB, SIZE, 2.5, adapts=True)
    logits = Logits(own, "h", VOCAB, SIZE, adapted="h")
    for name in "eh":
        own.weights.expected[f"{name}.weight"].sinks[0](torch.randn(VOCAB, SIZE))
    return table, embedding, logits


def test_rows_are_scaled_as_the_embedding_scales_its_own(ctx: BuildContext) -> None:
    table, embedding, logits = ends(ctx)
    low = Factors(torch.randn(2, VOCAB), torch.randn(SIZE, 2), scale=0.5)
    whole = torch.randn(VOCAB, SIZE)
    table.load("low", {"e": low})
    table.load("whole", {"e": Factors(*torch.empty(2, 0, 0), whole=whole)})
    ids, x = torch.tensor([5, 0, 3]), torch.randn(3, SIZE)
    plain, scores = embedding(ids), logits(x)
    found = table.begin(["whole", None, "low"], [1, 1, 1], np.arange(3))
    assert found == Changes.APART, "no recording knows them"
    wanted = plain.clone()
    wanted[0] = 2.5 * whole[5]
    wanted[2] += 2.5 * 0.5 * low.b @ low.a[:, 3]
    torch.testing.assert_close(embedding(ids), wanted)
    assert torch.equal(logits(x), scores), "adapters of the other end"


@pytest.mark.parametrize("kind", ["low", "whole"])
def test_memory_is_asked_for_before_it_is_taken(ctx: BuildContext, kind: str) -> None:
    need = {"low": 2 * 3 * (VOCAB + SIZE) * 4, "whole": 2 * VOCAB * SIZE * 4}[kind]
    empty = torch.empty(0, 0)
    factors = {
        "low": Factors(torch.randn(2, SIZE), torch.randn(VOCAB, 2)),
        "whole": Factors(empty, empty, whole=torch.randn(VOCAB, SIZE)),
    }[kind]
    table, _, logits = ends(ctx, need - 1)
    with pytest.raises(MemoryLimitError, match="lower --max-loras"):
        table.load("one", {"h": factors})
    assert not logits._adapted._held
    table, _, _ = ends(ctx, need)
    table.load("one", {"h": factors})
