"""`hotshoe bench latency` on the null platform."""

import json
from pathlib import Path

import pytest


def test_results(hotshoe, null, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    sizes = ("--input-len", "6", "--output-len", "5", "--num-prompts", "3", "--num-iters", "2")
    ran = hotshoe("bench", "latency", *null, *sizes, "--output-json", path)
    assert ran.code == 0
    names = [line.split()[0] for line in ran.out.splitlines()]
    assert names[2:] == ["first_token_ms", "total_s", "ms_per_token"]
    written = json.loads(path.read_text())
    assert len(written["iterations"]) == 2
    assert written["engine"]["platform"] == "null"
    for one in written["iterations"]:
        assert 0 < one["first_token_ms"] <= 1e3 * one["total_s"]
        rest = 1e3 * one["total_s"] - one["first_token_ms"]
        assert one["ms_per_token"] == pytest.approx(rest / 4)


def test_a_single_token_has_no_time_per_token(hotshoe, null) -> None:
    ran = hotshoe("bench", "latency", *null, "--input-len", "6", "--output-len", "1")
    assert ran.code == 0
    assert "ms_per_token" not in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--input-len", "0"], "--input-len must be at least 1, not 0"),
        (["--output-len", "0"], "--output-len must be at least 1"),
        (["--num-prompts", "-1"], "--num-prompts must be at least 1"),
        (["--num-iters", "0"], "--num-iters must be at least 1"),
        (["--num-iters-warmup", "-1"], "--num-iters-warmup must be at least 0"),
        (["--input-len", "60"], "make 188 tokens, but max_model_len is 64"),
    ],
)
def test_bad_sizes(hotshoe, null, words: list[str], message: str) -> None:
    ran = hotshoe("bench", "latency", *null, *words)
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize("given", [(), ("--max-model-len", "64")])
def test_a_length_is_checked_before_the_model_loads(hotshoe, null, monkeypatch, given) -> None:
    monkeypatch.setattr("hotshoe.cli.bench.workload.open_llm", pytest.fail)
    ran = hotshoe("bench", "latency", *null, *given, "--input-len", "60", "--output-len", "5")
    assert (ran.code, ran.out) == (2, "")
    assert "make 65 tokens, but max_model_len is 64; lower one of the two" in ran.err
