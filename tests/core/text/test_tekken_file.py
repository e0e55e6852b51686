"""Tokenizers of tekken.json, against tiktoken's rule written out, and files that are broken."""

import base64
import json
import random
from itertools import pairwise

import pytest
import regex

from hotshoe.errors import CheckpointError
from hotshoe.text.tekken_file import OLDER, tekken_parts
from hotshoe.text.tokenizer import Tokenizer

#: That of published files, which tells upper from lower case.
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = ["th", "he", "the", " the", "in", "ing", " in", "é", "ü", "  ", "日", "本", "日本"]
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]


def tokens():
    """Return tokens by rank: bytes, then words, shorter ones first."""
    found = [bytes([byte]) for byte in range(256)]
    return found + sorted({w.encode() for w in WORDS} - set(found), key=len)


def content(**changes):
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
        for i, t in enumerate(tokens())
    ]
    special = [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(SPECIAL)]
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(vocab),
        "default_vocab_size": len(vocab) + 8,
        "default_num_special_tokens": 8,
        "version": "v13",
    }
    extra = [{"rank": len(vocab), "token_bytes": base64.b64encode(b"zzz").decode()}]
    given = {"config": config, "vocab": vocab + extra, "special_tokens": special}
    return {**given, **changes, "config": {**config, **changes.get("config", {})}}


def merged(piece, ranks):
    """Join the pair of the lowest rank until none is a token."""
    parts = [bytes([byte]) for byte in piece]
    while True:
        pairs = [(ranks.get(a + b, len(ranks)), i) for i, (a, b) in enumerate(pairwise(parts))]
        best = min(pairs, default=(len(ranks), 0))
        if best[0] == len(ranks):
            return [ranks[part] for part in parts]
        parts[best[1] : best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]


def expected(text):
    ranks = {token: rank for rank, token in enumerate(tokens())}
    ids = [1]
    for piece in regex.findall(PATTERN, text):
        data = piece.encode()
        ids += [8 + r for r in ([ranks[data]] if data in ranks else merged(data, ranks))]
    return ids


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "tekken.json").write_text(json.dumps(content()))
    return tmp_path


def test_texts_are_cut_by_rank(directory):
    tokenizer = Tokenizer.load(directory)
    letters = "thein gTHE日本éü12 \n\t/!?z"
    texts = ["", "the things in the thing", "日本日 The\r\n\r\n  42"]
    texts += ["".join(random.choices(letters, k=random.randrange(40))) for _ in range(200)]
    for text in texts:
        assert tokenizer.encode(text) == expected(text)
        assert tokenizer.decode(expected(text)[1:]) == text


def test_special_tokens_have_the_first_ids(directory):
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.encode("[INST]a[/INST]</s>") == [1, 3, 8 + 97, 4, 2]
    assert tokenizer.encode("<SPECIAL_7>", add_special_tokens=False) == [7]
    assert tokenizer.special_tokens["bos_token"] == "<s>"
    assert 8 + len(tokens()) not in tokenizer.encode("zzz")  # behind the vocabulary's end


def test_a_tokenizer_json_comes_first(directory):
    (directory / "tokenizer.json").write_bytes(tekken_parts(directory / "tekken.json").model)
    (directory / "tekken.json").write_text("{")
    assert Tokenizer.load(directory).encode("the") == expected("the")


def test_older_files_name_no_special_tokens(tmp_path):
    given = content(config={"default_vocab_size": 256 + 20, "default_num_special_tokens": 20})
    del given["special_tokens"]
    (tmp_path / "tekken.json").write_text(json.dumps(given))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("[TOOL_CALLS]a") == [1, OLDER.index("[TOOL_CALLS]"), 20 + 97]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"pattern": None}}, "no pattern"),
        ({"config": {"default_vocab_size": None}}, "cannot be read"),
        ({"config": {"default_num_special_tokens": 4}}, "there are 5 special tokens, but .* 4"),
        ({"config": {"default_num_special_tokens": 10**9}}, "counts 1000000000"),
        ({"config": {"default_vocab_size": 10**6}}, "needs 999992"),
        ({"config": {"default_vocab_size": 200}}, "at least all bytes"),
        ({"vocab": None}, "cannot be read"),
        ({"vocab": [{"rank": 0}] * 300}, "token_bytes' is missing"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}] * 300}, "cannot be read"),
        ({"vocab": [{"rank": 0, "token_bytes": "YQ=="}] * 300}, "token 1 is"),
        ({"special_tokens": [{"rank": 9, "token_str": "a"}]}, "is no special token"),
        (
            {"special_tokens": [{"rank": 0, "token_str": "a"}, {"rank": 1, "token_str": "a"}]},
            "same",
        ),
        ({"config": {"pattern": "("}}, "unusable"),
    ],
)
def test_broken_files_are_named(tmp_path, changes, message):
    (tmp_path / "tekken.json").write_text(json.dumps(content(**changes)))
    with pytest.raises(CheckpointError, match=f"tekken.json.*{message}"):
        Tokenizer.load(tmp_path)
