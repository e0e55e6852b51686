"""Incremental detokenization equals the tokenizer's decoding of the whole, however it is cut."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.text.detokenizer import Detokenizer
from hotshoe.text.pieces import TokenPieces

KINDS = ["byte_level", "byte_fallback", "metaspace", "unigram", "word_piece", "no_decoder"]
EXACT = ["byte_level", "unigram", "word_piece", "no_decoder"]
BAD = "\N{REPLACEMENT CHARACTER}"


def stream(tokenizer, token_ids, cuts=(), skip_special_tokens=True, prompt=()):
    skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
    detokenizer = Detokenizer(tokenizer.pieces, skipped, prompt)
    bounds = [0, *sorted(cuts), len(token_ids)]
    parts = [detokenizer.push(token_ids[a:b]) for a, b in itertools.pairwise(bounds)]
    return [*parts, detokenizer.finish()]


def each_token(token_ids):
    return range(1, len(token_ids))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(text=st.text(), data=st.data())
def test_text_survives_any_cut(tokenizers_by_kind, kind, text, data):
    tokenizer = tokenizers_by_kind[kind]
    ids = tokenizer.encode(text)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=8))
    whole = tokenizer.decode(ids)
    assert "".join(stream(tokenizer, ids, cuts)) == whole
    parts = stream(tokenizer, ids, each_token(ids))
    assert "".join(parts) == whole
    if BAD not in text:
        assert not any(BAD in part for part in parts)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_random_tokens_survive_any_cut(tokenizers_by_kind, kind, skip, data):
    tokenizer = tokenizers_by_kind[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=8))
    assert "".join(stream(tokenizer, ids, cuts, skip)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace"])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_random_byte_fallback_tokens(tokenizers_by_kind, kind, skip, data):
    """Equal to the library unless a byte run is invalid; then only U+FFFD may differ."""
    tokenizer = tokenizers_by_kind[kind]
    lead = st.sampled_from([5 + b for b in (0x20, 0x41, 0x80, 0xA9, 0xC3, 0xE4, 0xB8, 0xF0, 0x9F)])
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3) | lead, max_size=40))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=8))
    ours, library = "".join(stream(tokenizer, ids, cuts, skip)), tokenizer.decode(ids, skip)
    assert ours == "".join(stream(tokenizer, ids, each_token(ids), skip))
    if BAD not in library:
        assert ours == library
    else:
        assert BAD in ours
        ascii_only = [x.encode("ascii", "ignore") for x in (ours, library)]
        assert len(ascii_only[0]) >= len(ascii_only[1])


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=24))
def test_arbitrary_bytes_decode_as_the_library_does(byte_level_tokenizer, data):
    alphabet = {piece: i for i, piece in byte_pieces(byte_level_tokenizer).items()}
    ids = [alphabet[bytes([b])] for b in data]
    parts = stream(byte_level_tokenizer, ids, each_token(ids))
    assert "".join(parts) == byte_level_tokenizer.decode(ids) == data.decode("utf-8", "replace")


def byte_pieces(tokenizer):
    pieces = {i: tokenizer.pieces[i] for i in range(tokenizer.vocab_size)}
    return {i: p for i, p in pieces.items() if len(p) == 1}


def test_characters_come_whole_and_at_once(byte_level_tokenizer):
    alphabet = {piece: i for i, piece in byte_pieces(byte_level_tokenizer).items()}
    ids = [alphabet[bytes([b])] for b in "a🙂é".encode()]
    parts = stream(byte_level_tokenizer, ids, each_token(ids))
    assert parts == ["a", "", "", "", "🙂", "", "é", ""]
    unfinished = stream(byte_level_tokenizer, ids[:3], each_token(ids[:3]))
    assert unfinished == ["a", "", "", BAD]
    broken = [*ids[:3], ids[0]]
    assert stream(byte_level_tokenizer, broken, each_token(broken)) == ["a", "", "", f"{BAD}a", ""]


def test_byte_fallback_characters_need_not_wait_for_the_run_to_end(tokenizers_by_kind):
    ids = [5 + b for b in "🙂é".encode()]
    parts = stream(tokenizers_by_kind["byte_fallback"], ids, each_token(ids))
    assert parts == ["", "", "", "🙂", "", "é", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_output_continues_its_prompt(tokenizers_by_kind, kind):
    tokenizer = tokenizers_by_kind[kind]
    text = {"no_decoder": "a b b a"}.get(kind, "The quick dog 日本 doesn't 🙂 wait , x")
    ids = [tokenizer.encode("<s>")[0], *tokenizer.encode(text)]
    whole = tokenizer.decode(ids)
    for cut in range(len(ids) + 1):
        before = tokenizer.decode(ids[:cut])
        after = "".join(stream(tokenizer, ids[cut:], prompt=ids[:cut]))
        assert before.rstrip(BAD) + after == whole


def test_long_texts_take_constant_work_per_token(byte_level_tokenizer, monkeypatch):
    looked_up = []
    make = TokenPieces.make

    def counting(self, token_id, first):
        looked_up.append(token_id)
        return make(self, token_id, first)

    monkeypatch.setattr(TokenPieces, "make", counting)
    pieces = TokenPieces(byte_level_tokenizer._backend)
    prompt = [random.randrange(byte_level_tokenizer.vocab_size) for _ in range(50_000)]
    detokenizer = Detokenizer(pieces, frozenset(), prompt)
    for token_id in prompt:
        detokenizer.push((token_id,))
    assert len(looked_up) <= byte_level_tokenizer.vocab_size + 8
