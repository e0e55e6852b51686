"""Objects of vLLM's --speculative-config, and what they are here."""

import json

import pytest

from hotshoe_server.vllm_drafts import AS_HERE, ENTRIES, IGNORED, METHODS, meant
from hotshoe_server.vllm_flags import rewrite

BY_NAME = "by the name of its model it is"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            {"method": "qwen3_next_mtp", "num_speculative_tokens": 2},
            {"method": "mtp", "num_speculative_tokens": 2},
        ),
        (
            {"model": "small", "num_speculative_tokens": 5},
            {"method": "draft_model", "model": "small", "num_speculative_tokens": 5},
        ),
        ({"model": "a/EAGLE3-LLaMA"}, {"method": "eagle3", "model": "a/EAGLE3-LLaMA"}),
        ({"model": "a/EAGLE-LLaMA"}, {"method": "eagle", "model": "a/EAGLE-LLaMA"}),
        (
            {"method": "mtp", "model": "g/gemma-4-E2B-it-assistant"},
            {"method": "gemma4_assistant", "model": "g/gemma-4-E2B-it-assistant"},
        ),
        ({"model": "a/b-assistant"}, {"method": "gemma4_assistant", "model": "a/b-assistant"}),
        ({"method": "mtp", "model": "a/whole"}, {"method": "mtp", "model": "a/whole"}),
        ({"model": "medusa", "method": "eagle"}, {"model": "medusa", "method": "eagle"}),
        ({"model": "[ngram]", "prompt_lookup_max": 4}, {"method": "ngram", "prompt_lookup_max": 4}),
        ({"method": "ngram", "unknown": 1}, {"method": "ngram", "unknown": 1}),
        ({"num_speculative_tokens": 2}, {"num_speculative_tokens": 2}),
        ({"method": 3}, {"method": 3}),
        ({"method": "ernie_mtp"}, {"method": "mtp"}),
        ({"method": None, "model": "d"}, {"method": "draft_model", "model": "d"}),
        ({"method": "ngram", "model": None, "quantization": None}, {"method": "ngram"}),
        ({"method": "eagle", **{key: AS_HERE[key][0] for key in AS_HERE}}, {"method": "eagle"}),
        (
            {"method": "eagle", "parallel_drafting": True, "rejection_sample_method": "synthetic"},
            {"method": "eagle", "parallel_drafting": True, "rejection_sample_method": "synthetic"},
        ),
        (
            {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
            {"method": "suffix", "suffix_decoding_max_cached_tokens": 0},
        ),
    ],
)
def test_entries_are_what_they_mean(given: dict[str, object], wanted: dict[str, object]) -> None:
    said: list[str] = []
    assert json.loads(meant(json.dumps(given), said.append)) == wanted
    guessed = "model" in wanted and given.get("method") is None
    line = f"--speculative-config names no method; {BY_NAME} {wanted.get('method')}"
    assert said == [line] * guessed


def test_entries_without_effect_are_said() -> None:
    said: list[str] = []
    given = {"method": "eagle3", "model": "head", **dict.fromkeys(IGNORED, 1)}
    assert json.loads(meant(json.dumps(given), said.append)) == {
        "method": "eagle3",
        "model": "head",
    }
    assert len(said) == len(IGNORED)
    assert all(f": {key} of vLLM" in line for key, line in zip(IGNORED, said, strict=True))
    given = {"method": "ngram", "enforce_eager": False, "attention_backend": None}
    assert json.loads(meant(json.dumps(given), said.append)) == {"method": "ngram"}
    assert len(said) == len(IGNORED)


def test_finished_answers_are_bounded_by_tokens() -> None:
    said: list[str] = []
    given = {"method": "suffix", "suffix_decoding_max_cached_requests": 9}
    assert json.loads(meant(json.dumps(given), said.append)) == {"method": "suffix"}
    assert "suffix_decoding_max_cached_tokens bounds them" in said[0]


@pytest.mark.parametrize("flag", [name for name in ENTRIES if ENTRIES[name] == "model"])
def test_a_model_of_its_own_flag_has_a_method(flag: str) -> None:
    drafts, said = "--speculative-config", list[str]()
    found = rewrite(["m", flag, "x/eagle3"], said.append)
    assert found == ["m", f"{drafts}.model", "x/eagle3", f"{drafts}.method", "eagle3"]
    assert rewrite([f"{drafts}.model=d"], said.append)[1:] == [f"{drafts}.method", "draft_model"]
    assert [BY_NAME in line for line in said] == [True, True]
    assert rewrite([f"{drafts}.model=[ngram]"], pytest.fail) == [f"{drafts}.method", "ngram"]
    found = rewrite([flag, "d", "--spec-method", "eagle"], pytest.fail)
    assert found == [f"{drafts}.model", "d", f"{drafts}.method", "eagle"]


@pytest.mark.parametrize("word", ["auto", "{", "[1]", "null", "3", "[" * 9999])
def test_what_is_no_object_passes(word: str) -> None:
    assert meant(word, pytest.fail) == word


@pytest.mark.parametrize("name", METHODS)
def test_flags_are_rewritten(name: str) -> None:
    flag, method = "--speculative-config", METHODS[name]
    made = json.dumps({"method": method})
    for words, wanted in (
        ([flag, json.dumps({"method": name})], [flag, made]),
        ([f"{flag}={json.dumps({'method': name})}", "m"], [f"{flag}={made}", "m"]),
        ([flag, name], [flag, method]),
        ([f"{flag}.method", name], [f"{flag}.method", method]),
        ([f"{flag}.method={name}"], [f"{flag}.method={method}"]),
        ([flag], [flag]),
    ):
        said: list[str] = []
        assert (rewrite(words, said.append), said) == (wanted, [])
