"""`hotshoe generate` from words to text, on tokens that one can count."""

import io
import json

import pytest

from hotshoe.text.output_processor import OutputProcessor
from hotshoe.types import FinishReason, TokenOutput


def test_one_prompt_streams(hotshoe, null) -> None:
    ran = hotshoe("generate", *null, "-p", "A", "--max-tokens", "5")
    assert (ran.code, ran.out) == (0, "BCDEF\n")
    report = ran.err.splitlines()
    assert report[0].startswith(f"{null[0]} on null (float32): weights 0 MiB, kv_cache")
    assert report[1].startswith("ready in ")
    assert report[2].startswith("5 tokens in ")


def test_several_prompts_run_as_a_batch(hotshoe, null) -> None:
    ran = hotshoe("generate", *null, "-p", "A", "-p", "X", "--max-tokens", "2")
    assert ran.out == "[1] A\nBC\n\n[2] X\nYZ\n"
    assert "2 prompts, 4 tokens in " in ran.err


def test_several_sequences(hotshoe, null) -> None:
    ran = hotshoe("generate", *null, "-p", "A", "--n", "3", "--max-tokens", "2")
    assert ran.out == "[1] A\nBC\nBC\nBC\n"


def test_json_is_one_document_that_holds_everything(hotshoe, null) -> None:
    ran = hotshoe("generate", *null, "--json", "-q", "-p", "A", "X", "--max-tokens", "3")
    assert ran.err == ""
    document = json.loads(ran.out)
    assert document["model"] == null[0]
    assert document["platform"] == "null"
    assert document["generate_s"] > 0
    assert "load tokenizer" in document["startup_s"]
    first, second = document["requests"]
    assert first["prompt"] == "A"
    assert first["outputs"][0]["text"] == "BCD"
    assert first["outputs"][0]["finish_reason"] == "length"
    assert second["outputs"][0]["token_ids"] == [
        i + 1 + j for i in second["prompt_token_ids"] for j in range(3)
    ]


def test_the_stop_string_ends_the_text(hotshoe, null) -> None:
    assert hotshoe("generate", *null, "-q", "-p", "A", "--stop", "EF").out == "BCD\n"


def test_standard_input_is_the_prompt(hotshoe, null, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("A"))
    assert hotshoe("generate", *null, "-q", "--max-tokens", "1").out == "B\n"


def test_no_prompt_at_all(hotshoe, null, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    ran = hotshoe("generate", *null)
    assert ran.code == 2
    assert "nothing to continue; give -p TEXT" in ran.err


def test_standard_input_that_is_no_text(hotshoe, null, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", bad)
    ran = hotshoe("generate", *null)
    assert ran.code == 2
    assert "standard input is not utf-8 text" in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--platform", "nul"], "unknown platform 'nul'; did you mean null?"),
        (["--kernel", "atention=native"], "unknown slot 'atention'; did you mean attention?"),
        (["--kernel", "attention=nativ"], "slot attention has no candidate 'nativ'"),
        (["--disable-plugins", "nobody"], "no plugin 'nobody' to disable"),
        (["--temperature", "-1"], "temperature must be in [0, 1000], not -1"),
        (["--top-p", "nan"], "top_p must be in (0, 1], not nan"),
        (["--max-num-seqs", "0"], "max_num_seqs must be between 1 and"),
        (["--dtype", "float7"], "invalid choice: 'float7'"),
        (["--max-model-len", "4000"], "exceeds the model's 64"),
        (["--kv-cache-memory-bytes", "10"], "the KV cache may take"),
        (["-p", "A" * 70], "the prompt has 70 characters, clearly more"),
        (["--skip-tokenizer-init"], "no tokenizer"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(hotshoe, null, words, message: str) -> None:
    ran = hotshoe("generate", *null, "-q", "-p", "A", *words)
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("hotshoe: error: ")


def test_an_unknown_model_says_what_to_give(hotshoe) -> None:
    ran = hotshoe("generate", "no/such/model", "--platform", "null", "-p", "A")
    assert ran.code == 2
    assert "no model at no/such/model" in ran.err


def test_a_failed_request_is_reported_and_the_others_printed(hotshoe, null, monkeypatch) -> None:
    plain = OutputProcessor.process

    def process(self, outputs):
        failing = [
            TokenOutput(o.request_id, [], finish_reason=FinishReason.ERROR, error="bad numbers")
            if o.request_id == "1.0"
            else o
            for o in outputs
        ]
        return plain(self, failing)

    monkeypatch.setattr(OutputProcessor, "process", process)
    ran = hotshoe("generate", *null, "-q", "-p", "A", "X", "--max-tokens", "2")
    assert ran.code == 1
    assert "[2] X\nYZ" in ran.out
    assert ran.err == "hotshoe: error: request 1: bad numbers\n"
