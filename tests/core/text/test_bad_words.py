"""Bad words as token sequences, whatever precedes them."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from hotshoe.text import Tokenizer, bad_word_token_ids


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


def test_marks_of_a_text_are_no_part_of_a_word(make_directory, tokenizers_by_kind):
    plain, directory = tokenizers_by_kind["byte_fallback"], make_directory("byte_fallback")
    backend = Backend.from_file(str(directory / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    backend.save(str(directory / "tokenizer.json"))
    marking = Tokenizer.load(directory)
    assert marking.encode("quick") == [1, *plain.encode("quick"), 2]
    assert bad_word_token_ids(marking, ["quick"]) == bad_word_token_ids(plain, ["quick"])


def test_no_words(byte_level_tokenizer):
    assert bad_word_token_ids(byte_level_tokenizer, []) == []
