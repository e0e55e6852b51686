"""Packed masks against a row-by-row reading of their bits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.sampling import masks
from hotshoe.sampling.masks import TokenMasks


def packed(allowed: np.ndarray) -> bytes:
    width = -(-len(allowed) // 32) * 32
    return np.packbits(np.pad(allowed, (0, width - len(allowed))), bitorder="little").tobytes()


@given(
    seed=st.integers(0, 2**31),
    vocab_size=st.sampled_from([1, 7, 32, 33, 500]),
    num_rows=st.integers(1, 8),
    share=st.floats(0, 1),
    room_bytes=st.sampled_from([1, 2 * 32 * 64, masks.ROOM_BYTES]),
)
def test_only_the_listed_rows_lose_only_the_other_tokens(
    seed: int, vocab_size: int, num_rows: int, share: float, room_bytes: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.standard_normal((num_rows, vocab_size)).astype(np.float32))
    rows = rng.permutation(50)[:num_rows].astype(np.int64)
    masked = [int(row) for row in rows if rng.random() < share]
    allowed = {row: rng.random(vocab_size) < 0.5 for row in masked}
    expected = logits.clone()
    for at, row in enumerate(rows.tolist()):
        if row in allowed:
            expected[at][torch.from_numpy(~allowed[row])] = -torch.inf
    if masked:
        words = [packed(allowed[row]) for row in masked]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(masks, "ROOM_BYTES", room_bytes)
            TokenMasks(torch.device("cpu")).apply(logits, rows, masked, words)
    assert torch.equal(logits, expected)


def test_broken_logits_stay_broken() -> None:
    logits = torch.tensor([[torch.nan, 1.0], [2.0, torch.inf]])
    words = [packed(np.array([True, False]))] * 2
    TokenMasks(torch.device("cpu")).apply(logits, np.array([3, 5]), [3, 5], words)
    assert logits[0].isnan().tolist() == [True, False]
    assert logits[1].tolist()[0] == 2.0
    assert not logits[1, 1].isfinite()


@pytest.mark.parametrize("extra_words", [0, 3])
def test_masks_may_be_wider_than_the_logits(extra_words: int) -> None:
    logits = torch.zeros(1, 40)
    mask = packed(np.arange(40) % 2 == 0) + b"\xff" * 4 * extra_words
    TokenMasks(torch.device("cpu")).apply(logits, np.array([0]), [0], [mask])
    assert torch.equal(logits[0] == 0, torch.arange(40) % 2 == 0)
