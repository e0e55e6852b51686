"""Rows hold whole conversations, and mark what is learned."""

import numpy as np
from demo_data.packing import chat_rows, text_rows

LENGTH = 1025


def test_rows_depend_on_the_seed_alone(tokenizer, vocabulary) -> None:
    first, again, other = (chat_rows(tokenizer, vocabulary, seed, 3, LENGTH) for seed in (7, 7, 8))
    assert np.array_equal(first.tokens, again.tokens)
    assert np.array_equal(first.learned, again.learned)
    assert not np.array_equal(first.tokens, other.tokens)


def test_rows_hold_whole_conversations(tokenizer, vocabulary) -> None:
    rows = chat_rows(tokenizer, vocabulary, 3, 4, LENGTH)
    assert rows.tokens.shape == rows.learned.shape == (4, LENGTH)
    assert 0.1 < rows.learned.mean() < 0.5
    for tokens in rows.tokens:
        text = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        documents = [part for part in text.split("<|endoftext|>") if part]
        assert len(documents) > 1
        assert all(part.startswith("<|im_start|>") for part in documents)
        assert text.count("<|im_start|>") == text.count("<|im_end|>")


def test_learned_pieces_end_turns(tokenizer, vocabulary) -> None:
    rows = chat_rows(tokenizer, vocabulary, 5, 2, LENGTH)
    end = tokenizer.token_to_id("<|im_end|>")
    last = rows.learned[:, :-1] & ~rows.learned[:, 1:]
    assert last.sum() > 5
    assert (rows.tokens[:, :-1][last] == end).all()


def test_text_rows_overlap_by_one_token() -> None:
    rows = text_rows(np.arange(100, dtype=np.uint16), 10)
    assert rows.tokens.shape == (11, 10)
    assert (rows.tokens[1:, 0] == rows.tokens[:-1, -1]).all()
    assert rows.tokens[-1, -1] == 99
    assert rows.learned.all()
