"""Bad words as token sequences, whatever precedes them."""

import pytest

from hotshoe.text import bad_word_token_ids


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace", "unigram"])
@pytest.mark.parametrize("word", ["quick", "the", "dog it", "naïve", "12345"])
def test_every_spelling_in_a_text_is_found(tokenizers_by_kind, kind, word):
    tokenizer = tokenizers_by_kind[kind]
    sequences = bad_word_token_ids(tokenizer, [word])
    assert len(set(sequences)) == len(sequences) and all(sequences)
    for text in (word, f"a {word}", f"x\n{word}", f"x\n {word}", f"one, two, {word}"):
        ids = tokenizer.encode(text)
        spelt = [s for s in sequences if ids[len(ids) - len(s) :] == list(s)]
        assert spelt, f"{word!r} in {text!r} is {ids}; forbidden are {sequences}"


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace"])
def test_only_the_word_is_spelt(tokenizers_by_kind, kind):
    tokenizer = tokenizers_by_kind[kind]
    for ids in bad_word_token_ids(tokenizer, ["quick", " fox"]):
        assert tokenizer.decode(list(ids)).strip() in ("quick", "fox")


def test_no_words(byte_level_tokenizer):
    assert bad_word_token_ids(byte_level_tokenizer, []) == []
