"""Tokenizers of tiktoken's form, against that library; what is wrong with a file is named."""

import base64
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.errors import CheckpointError
from hotshoe.text.tiktoken_file import FILE, PATTERNS, RESERVED, tiktoken_backend
from hotshoe.text.tokenizer import Tokenizer

CLASS = "tokenization_kimi.TikTokenTokenizer"
TEXT = (
    "Hello world, it's THE theory: 北京天气 1234567\n\n  def f(x):\n\treturn x' "
    "I'LL we're naïve Ünïcode"
)
CONFIG = {
    "auto_map": {"AutoTokenizer": [CLASS, None]},
    "bos_token": "[BOS]",
    "eos_token": "[EOS]",
    "chat_template": "{{ messages[0].content }}",
}


def learned(steps: int) -> list[bytes]:
    """Return bytes, and tokens that join the commonest neighbors of a text, one by one."""
    tokens = [bytes([i]) for i in range(256)]
    words = [[bytes([b]) for b in word.encode()] for word in TEXT.replace(" ", "| ").split("|")]
    for _ in range(steps):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        tokens.append(left + right)
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == (left, right):
                    word[at : at + 2] = [left + right]
                at += 1
    return list(dict.fromkeys(tokens))


TOKENS = learned(60)
ADDED = {
    str(len(TOKENS)): {"content": "[BOS]", "special": True},
    str(len(TOKENS) + 1): {"content": "[EOS]", "special": True},
    str(len(TOKENS) + 9): {"content": "<|tool|>", "special": False},
}


def write(path: Path, tokens: list[bytes], **config: object) -> Path:
    lines = [base64.b64encode(token) + b" %d" % i for i, token in enumerate(tokens)]
    (path / FILE).write_bytes(b"\n".join(lines))
    values = {**CONFIG, "added_tokens_decoder": ADDED, **config}
    (path / "tokenizer_config.json").write_text(json.dumps(values))
    return path


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory):
    tiktoken = pytest.importorskip("tiktoken")
    ours = Tokenizer.load(write(tmp_path_factory.mktemp("kimi"), TOKENS))
    ranks = {token: i for i, token in enumerate(TOKENS)}
    return ours, tiktoken.Encoding(
        "t", pat_str=PATTERNS[CLASS], mergeable_ranks=ranks, special_tokens={}
    )


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(max_size=40)
    | st.lists(
        st.sampled_from([*TEXT, "'s", "'LL", "   ", "\r\n", "京", "12345", "the", "Ab"])
    ).map("".join)
)
def test_ids_are_those_of_tiktoken(both, text: str) -> None:
    ours, theirs = both
    ids = ours.encode(text)
    assert ids == theirs.encode(text, disallowed_special=())
    assert ours.decode(ids) == text


def test_tokens_behind_the_file_are_added(both) -> None:
    ours, _ = both
    base = len(TOKENS)
    assert ours.vocab_size == base + RESERVED
    assert (ours.bos_token_id, ours.eos_token_id) == (base, base + 1)
    ids = [base + 9, *ours.encode("a"), base + 1, base + 2]
    assert ours.encode(f"<|tool|>a[EOS]<|reserved_token_{base + 2}|>") == ids
    assert ours.decode(ids) == "<|tool|>a"
    assert ours.apply_chat_template([{"role": "user", "content": "hi"}]) == "hi"


def test_a_class_may_be_named_with_its_repository(tmp_path: Path) -> None:
    named = {"AutoTokenizer": f"organization/model--{CLASS}"}
    assert tiktoken_backend(write(tmp_path, TOKENS), {"auto_map": named}) is not None


@pytest.mark.parametrize("auto_map", [None, [], {}, {"AutoTokenizer": [3, "other.Class"]}])
def test_other_classes_are_left_alone(tmp_path: Path, auto_map: object) -> None:
    assert tiktoken_backend(write(tmp_path, TOKENS), {"auto_map": auto_map}) is None
    assert tiktoken_backend(tmp_path / "nowhere", CONFIG) is None


BAD = [
    (b"!!! 0", "line 1 is no new token in base64 with rank 0"),
    (b"AA== x", "line 1 is no new token"),
    (b"AA== 1", "line 1 is no new token"),
    (b"AA== 0\nAA== 1", "line 2 is no new token"),
    (b"AA== 0\n\nAQ== 1", "line 2 is no new token"),
    (b"AA== 0", "lacks byte 1"),
    (b"", "lacks byte 0"),
]


@pytest.mark.parametrize(("data", "message"), BAD, ids=str)
def test_malformed_files_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        tiktoken_backend(tmp_path, CONFIG)
