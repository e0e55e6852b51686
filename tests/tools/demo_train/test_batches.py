"""Batches are the same however many processes make them."""

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_data import lexicon
from demo_data.packing import Rows
from demo_data.prepare import Prepared
from demo_train.batches import Plan, _epochs, batches

from hotshoe_demo import MODEL


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    folder = tmp_path / "prepared"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer" / "tokenizer.json").write_bytes((MODEL / "tokenizer.json").read_bytes())
    (folder / "vocabulary.txt").write_text("\n".join(lexicon.THINGS))
    stream = np.random.default_rng().integers(300, 8000, 20_000, dtype=np.uint16)
    (folder / "text.u16.xz").write_bytes(lzma.compress(stream.tobytes()))
    return Prepared(folder)


def test_batches_do_not_depend_on_workers(prepared: Prepared) -> None:
    plan = Plan(steps=3, rows=4, text_rows=2, length=512)
    one, two = (list(batches(prepared, plan, workers)) for workers in (1, 2))
    assert len(one) == len(two) == 3
    for (tokens, weights), (others, same) in zip(one, two, strict=True):
        assert torch.equal(tokens, others)
        assert torch.equal(weights, same)
        assert tokens.shape == weights.shape == (4, 513)
        assert set(weights.unique().tolist()) == {0.0, 1.0, plan.chat_weight}
        end = prepared.tokenizer.token_to_id("<|endoftext|>")
        assert (weights[:, 1:][tokens[:, :-1] == end] == 0).all()


def test_texts_come_in_whole_batches_each_once_an_epoch() -> None:
    tokens = np.arange(5, dtype=np.uint16)[:, None]
    drawn = _epochs(Rows(tokens, tokens > 0), 2, seed=1)
    for _ in range(3):
        epoch = [next(drawn) for _ in range(2)]
        assert all(rows.tokens.shape == rows.learned.shape == (2, 1) for rows in epoch)
        seen = np.concatenate([rows.tokens for rows in epoch])
        assert len(np.unique(seen)) == 4
