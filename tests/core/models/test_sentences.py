"""Sentence-transformers' files beside the modules."""

import json

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.models.sentences import (
    SENTENCES,
    TRANSFORMERS,
    read_instructions,
    read_length,
)
from hotshoe.types.instructions import Instructions


def write(path, name=SENTENCES, **values) -> None:
    (path / name).write_text(json.dumps(values))


def test_without_files(tmp_path) -> None:
    assert read_instructions(tmp_path) == Instructions()
    assert read_length(tmp_path) is None


def test_prompts(tmp_path) -> None:
    write(tmp_path, prompts={"query": "q: "}, default_prompt_name="query")
    assert read_instructions(tmp_path) == Instructions({"query": "q: "}, "query")
    write(tmp_path, prompts={}, default_prompt_name=None, similarity_fn_name=None)
    assert read_instructions(tmp_path) == Instructions()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("dot", "dot"), ("dot_score", "dot"), ("cos_sim", "cosine"), ("manhattan", "manhattan")],
)
def test_similarities(tmp_path, name, wanted) -> None:
    write(tmp_path, similarity_fn_name=name)
    assert read_instructions(tmp_path).similarity == wanted


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_lengths(tmp_path, name) -> None:
    write(tmp_path, name, max_seq_length=256, do_lower_case=False)
    assert read_length(tmp_path) == 256
    write(tmp_path, name, max_seq_length=None)
    assert read_length(tmp_path) is None


@pytest.mark.parametrize(
    ("read", "name", "values", "message"),
    [
        (read_instructions, SENTENCES, {"prompts": ["q"]}, "must be an object of texts"),
        (read_instructions, SENTENCES, {"prompts": {"q": 1}}, "must be an object of texts"),
        (read_instructions, SENTENCES, {"default_prompt_name": "q"}, "'q' is none of its prompts"),
        (read_instructions, SENTENCES, {"similarity_fn_name": "hamming"}, "'hamming' is unknown"),
        (read_instructions, SENTENCES, {"similarity_fn_name": ["dot"]}, "is unknown"),
        (read_length, TRANSFORMERS[0], {"max_seq_length": 0}, "a positive integer, not 0"),
        (read_length, TRANSFORMERS[0], {"max_seq_length": True}, "a positive integer, not True"),
    ],
)
def test_malformed_files(tmp_path, read, name, values, message) -> None:
    write(tmp_path, name, **values)
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)
