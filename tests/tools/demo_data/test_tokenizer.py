"""A tokenizer trained on little text keeps every promise of the bundled one."""

import pytest
from demo_data import tokenizer as made
from tokenizers import Tokenizer

TEXTS = [
    "The quick brown fox reads the documentation of the file system. " * 40,
    'def add(a, b):\n    return a + b\n\n{"name": "add", "arguments": {"a": 12, "b": 345}}\n' * 40,
    "Files, folders and directories: don't delete them, it's 2024-11-03.\n\n" * 40,
]


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return made.train(TEXTS)


def test_round_trip(small: Tokenizer) -> None:
    for text in [*TEXTS, "héllo ☃\x00 \u202e 𝔘\r\n\t  x   ", "don't we're 's"]:
        assert small.decode(small.encode(text).ids, skip_special_tokens=False) == text


def test_words_split_alike_with_and_without_space(small: Tokenizer) -> None:
    for word in ("documentation", "directories", "undocumented", "foxes", "zyx"):
        alone, spaced = small.encode(word).tokens, small.encode(f" {word}").tokens
        assert "".join(spaced) == "\u0120" + "".join(alone)
        assert alone[1:] == spaced[len(spaced) - len(alone) + 1 :]


def test_digits_and_marks_are_single_tokens(small: Tokenizer) -> None:
    assert [t for t in small.encode("a 2024").tokens if t.isdigit()] == list("2024")
    for mark in (*made.SPECIAL, *made.MARKUP):
        assert small.encode(mark).tokens == [mark]


def test_only_turn_marks_are_special(small: Tokenizer) -> None:
    ids = small.encode("<|im_start|>a<tool_call>b</tool_call><|im_end|>").ids
    assert small.decode(ids) == "a<tool_call>b</tool_call>"


def test_saved_files_load_again(small: Tokenizer, tmp_path) -> None:
    made.save(small, tmp_path)
    again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert again.get_vocab() == small.get_vocab()
    assert (tmp_path / "tokenizer_config.json").stat().st_size > 1000
