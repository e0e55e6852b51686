"""Attention over dense keys and values, of batches whose sequences are padded at either end."""

import pytest
import torch

from hotshoe.slots import AttentionSpec
from hotshoe_bridge.attention import BLOCK_TOKENS, DenseAttention, Span, spans


def mask_of(padding: list[tuple[int, int]], queries: int, keys: int, window: int | None):
    """Return the mask of sequences that are padded before and behind."""
    at = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)[None, :]
    causal = key <= at
    if window:
        causal = causal & (key > at - window)
    return torch.stack([causal & (key >= left) & (key < keys - right) for left, right in padding])[
        :, None
    ]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("queries", "keys"), [(20, 20), (3, 37), (1, 18)])
def test_results_are_those_of_a_plain_product(operations, window, queries: int, keys: int) -> None:
    padding = [(0, 0), (min(4, keys - queries + 2), 0)] + [(0, 2)] * (queries > 3)
    mask = mask_of(padding, queries, keys, window)
    batch = len(padding)
    q = torch.randn(batch, 4, queries, 8)
    k, v = torch.randn(2, batch, 2, keys, 8)
    spec = AttentionSpec(4, 2, 8, "float32", "float32", BLOCK_TOKENS, 0.3, window)
    found = spans(mask, batch, queries, keys, window)
    out = DenseAttention(operations)(spec, q, k, v, found)
    wide = [x.repeat_interleave(2, 1) for x in (k, v)]
    scores = (q @ wide[0].mT * 0.3).masked_fill(~mask, -torch.inf)
    want = (scores.softmax(-1) @ wide[1]).transpose(1, 2)
    for i, span in enumerate(found):
        real = slice(span.first_query, span.last_query)
        assert torch.allclose(out[i, real], want[i, real], atol=1e-5)
        assert not out[i, : span.first_query].any()


def test_what_a_mask_says() -> None:
    assert spans(None, 2, 3, 3, None) == [Span(0, 3, 0, 3)] * 2
    mask = mask_of([(0, 0), (2, 0)], 4, 4, None)
    expected = [Span(0, 4, 0, 4), Span(2, 4, 2, 4)]
    assert spans(mask, 2, 4, 4, None) == expected
    added = torch.where(mask, 0.0, -1e9)
    assert spans(added, 2, 4, 4, None) == expected


def test_masks_that_are_not_causal_are_refused() -> None:
    mask = mask_of([(0, 0)], 4, 4, None)
    seeing = mask.clone()
    seeing[0, 0, 1, 3] = True
    for wrong in (seeing, torch.ones_like(mask)):
        with pytest.raises(ValueError, match="not that of causal attention"):
            spans(wrong, 1, 4, 4, None)
    with pytest.raises(ValueError, match="not that of causal attention"):
        spans(mask, 1, 4, 4, window=2)
    with pytest.raises(ValueError, match="has no key"):
        spans(torch.zeros_like(mask), 1, 4, 4, None)
