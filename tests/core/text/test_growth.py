"""What a tokenizer's steps may make of text, as its file says."""

import base64
import json
import struct

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers

from hotshoe.errors import CheckpointError
from hotshoe.text import Tokenizer as Ours
from hotshoe.text.growth import MAX_STEPS, check_file, check_growth

TENFOLD = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}


def sequence(*steps, name="normalizers"):
    return {"type": "Sequence", name: list(steps)}


def charsmap(text):
    table = struct.pack("<I", 4) + bytes(4) + b"short\0" + text.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


@pytest.mark.parametrize(
    "spec",
    [
        TENFOLD,
        sequence(),
        sequence(TENFOLD, sequence({"type": "NFKC"}, {"type": "Lowercase"})),
        sequence({"type": "Prepend", "prepend": "▁"}, TENFOLD),
        sequence(charsmap("x" * 18), {**TENFOLD, "pattern": {"Regex": " {2,}"}, "content": "▁"}),
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
        {"type": "Precompiled", "precompiled_charsmap": None},
    ],
)
def test_steps_of_known_tokenizers_pass(spec):
    check_growth("normalizer", spec)


@pytest.mark.parametrize(
    "spec",
    [
        {**TENFOLD, "content": "a" * 65},
        sequence(TENFOLD, TENFOLD),
        sequence(TENFOLD, sequence(TENFOLD, name="decoders"), name="decoders"),
        {**TENFOLD, "pattern": {"Regex": "a*"}, "content": "a" * 64},
        {"type": "Prepend", "prepend": "a" * 2**20},
        sequence(*[{"type": "ByteLevel"}] * 7),
        charsmap("x" * 65),
    ],
)
def test_steps_that_multiply_are_refused(spec):
    with pytest.raises(CheckpointError, match=r"its decoder can make \d+ characters of one"):
        check_growth("decoder", spec)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"type": "Sequence"},
        {"type": "Sequence", "decoders": [3]},
        {"type": "Replace"},
        {**TENFOLD, "pattern": {"String": ""}},
        {"type": ["Replace"]},
        {"type": "Prepend", "prepend": 3},
        {"type": "Precompiled", "precompiled_charsmap": "ä"},
    ],
)
def test_malformed_steps_are_named(spec):
    with pytest.raises(CheckpointError, match="its decoder is malformed"):
        check_growth("decoder", spec)


def test_the_number_of_steps_is_bounded():
    check_growth("normalizer", sequence(*[{"type": "NFC"}] * MAX_STEPS))
    with pytest.raises(CheckpointError, match="more than 64 steps"):
        check_growth("normalizer", sequence(*[{"type": "NFC"}] * (MAX_STEPS + 1)))


@pytest.mark.parametrize("vocab", [{"a" * 4097: 0}, [["a" * 4097, 0.5]]])
def test_a_token_that_is_too_long_is_refused(vocab):
    with pytest.raises(CheckpointError, match="a token of 4097 characters"):
        check_file(json.dumps({"model": {"vocab": vocab}}).encode())
    added = {"model": {}, "added_tokens": [{"content": "b" * 5000}]}
    with pytest.raises(CheckpointError, match="a token of 5000 characters"):
        check_file(json.dumps(added).encode())


def test_a_normalizer_that_multiplies_is_refused_before_the_library_runs_it(tmp_path):
    """The library normalizes added tokens while it reads the file: 10^12 characters here."""
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.add_tokens([AddedToken("a", normalized=True)])
    backend.normalizer = normalizers.Sequence([normalizers.Replace("b", "b" * 10)] * 12)
    backend.save(str(tmp_path / "tokenizer.json"))
    text = (tmp_path / "tokenizer.json").read_text().replace("b", "a")
    text = text.replace('"vocaa"', '"vocab"')
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match="is unusable: its normalizer can make"):
        Ours.load(tmp_path)


def test_the_limits_hold_for_what_the_library_writes(tmp_path):
    backend = Tokenizer(models.Unigram([("a", 0.0)], unk_id=0))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(" {2,}"), "▁"), normalizers.Prepend("▁")]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Ours.load(tmp_path).vocab_size == 1
