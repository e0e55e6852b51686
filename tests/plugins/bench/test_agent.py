"""`hotshoe bench agent` against a server whose delays are known."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.plugins.bench.conftest import Ran

from hotshoe.cli.main import main

CHAT = ("--endpoint", "/v1/chat/completions", "--tokenizer", "demo")


@pytest.fixture
def agent(server, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`hotshoe bench agent` against the fake server, with a small load unless told."""

    def run(*words: object) -> Ran:
        sizes = ["--prefix-len", "40", "--input-len", "3", "--output-len", "2", "--num-turns", "3"]
        sizes += ["--num-sessions", "4", "--tool-pause", "0"]
        base = ["--base-url", server.url, "--concurrency", "2"]
        capsys.readouterr()
        code = main(
            ["bench", "agent", *base, *([] if "--trace" in words else sizes), *map(str, words)]
        )
        return Ran(code, *capsys.readouterr())

    return run


def test_context_grows(agent, server) -> None:
    assert agent("--concurrency", 1).code == 0
    prompts = [asked["prompt"] for asked in server.seen]
    assert [len(prompt) for prompt in prompts] == [43, *(43, 48, 53) * 4]
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 1
    assert len({tuple(prompt[:43]) for prompt in prompts}) == 5  # the warm-up's, and four sessions'
    for number in (2, 3):
        assert prompts[number][: len(prompts[number - 1])] == prompts[number - 1]
    assert {asked["max_tokens"] for asked in server.seen} == {2}


def test_a_chat(agent, server) -> None:
    assert agent(*CHAT, "--concurrency", 1, "--num-sessions", 1).code == 0
    chats = [asked["messages"] for asked in server.seen[1:]]
    assert [[message["role"] for message in chat] for chat in chats] == [
        ["system", "user", *("assistant", "user") * number] for number in range(3)
    ]
    assert chats[2][:4] == chats[1]


def test_loads_have_other_words_of_the_same_lengths(agent, server) -> None:
    words = ("--concurrency", 1, 2, "--range-ratio", 0.5, "--seed", 5)
    assert agent(*words).code == 0
    lengths = [[len(asked["prompt"]) for asked in server.seen[at : at + 12]] for at in (1, 13)]
    assert sorted(lengths[0]) == sorted(lengths[1])
    firsts = [asked["prompt"][40:43] for asked in (server.seen[1], server.seen[13])]
    assert firsts[0] != firsts[1]
    sent = [asked["prompt"] for asked in server.seen]
    server.seen.clear()
    assert agent(*words).code == 0
    assert sorted(asked["prompt"] for asked in server.seen) == sorted(sent)


def test_sessions_at_a_time(agent, server) -> None:
    server.first_s = 0.02
    assert agent("--concurrency", 3, "--num-sessions", 6).code == 0
    assert server.most_open == 3
    assert len(server.seen) == 1 + 6 * 3


def test_results(agent, server, tmp_path: Path, capsys) -> None:
    server.first_s, server.gap_s, server.num_cached = 0.05, 0.03, 7
    paths = [tmp_path / name for name in ("out.json", "out.svg")]
    ran = agent("--concurrency", 1, 4, "--json", paths[0], "--svg", paths[1])
    assert ran.code == 0
    assert "on the Pareto front" in ran.out and "found in cache" in ran.out
    document = json.loads(paths[0].read_text())
    numbers = document["summary"]
    for sessions in (1, 4):
        assert numbers[f"num_completed@{sessions}"] == 12
        assert numbers[f"cached_share@{sessions}"] == 1
        least = {"ttft_ms": 50, "itl_ms": 30, "e2e_per_token_ms": 40}
        for name, low in least.items():
            p50, p90, p99 = (numbers[f"{name}_p{p}@{sessions}"] for p in (50, 90, 99))
            assert low <= p50 <= p90 <= p99
        assert 0 < numbers[f"user_tokens_per_s@{sessions}"] <= 1 / 0.03
    assert [level["sessions"] for level in document["levels"]] == [1, 4]
    assert all(len(level["requests"]) == 12 for level in document["levels"])
    assert len(ET.parse(paths[1]).getroot().findall("{*}circle")) == 2
    assert main(["bench", "compare", str(paths[0]), str(paths[0])]) == 0
    assert "ttft_ms_p50@4" in capsys.readouterr().out


def test_a_trace_is_replayed_with_its_pauses(agent, server, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace", tmp_path / "out"
    turns = [
        {"input_len": 3, "output_len": 2},
        {"input_len": 4, "output_len": 1, "pause_s": 0.2},
    ]
    lines = [{"prefix_len": length, "turns": turns} for length in (10, 20, 10)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    assert agent("--trace", trace, "--json", out, "--concurrency", 1).code == 0
    lengths = [len(asked["prompt"]) for asked in server.seen]
    assert lengths == [13, 23, 13, 19, 23, 29, 13, 19]
    document = json.loads(out.read_text())
    assert "num_turns" not in document["workload"] and document["workload"]["trace"] == str(trace)
    requests = document["levels"][0]["requests"]
    for first, second in zip(requests[::2], requests[1::2], strict=True):
        assert second["sent_s"] - first["ended_s"] >= 0.199


def test_a_failure_ends_its_session(agent, server, tmp_path: Path) -> None:
    server.fault, server.fault_every = "busy", 3  # the warm-up is the first request
    out = tmp_path / "out"
    ran = agent("--json", out, "--num-sessions", 1, "--concurrency", 1)
    assert ran.code == 0
    numbers = json.loads(out.read_text())["summary"]
    counts = [numbers[f"num_{name}@1"] for name in ("completed", "failed", "not_sent")]
    assert counts == [1, 1, 1]
    assert "too many requests" in ran.out


def test_sessions_outgrow_the_model(agent, server) -> None:
    server.models_body = {"data": [{"id": "fake", "max_model_len": 54}]}
    ran = agent("--num-turns", 3)
    assert ran.code == 2 and not server.seen
    assert "a session grows to 55 tokens, and the model's context is 54; lower" in ran.err
    assert agent("--num-turns", 3, "--model", "fake").code == 2 and not server.seen
    assert agent("--num-turns", 3, "--model", "another").code == 0
    server.models_body["data"][0]["max_model_len"] = 55
    assert agent("--num-turns", 3).code == 0


def test_a_failing_warm_up_ends_it(agent, server) -> None:
    server.fault = "busy"
    ran = agent()
    assert ran.code == 2
    assert "a warm-up request failed: HTTP 429 too many requests" in ran.err
    assert len(server.seen) == 1


def test_nothing_completed_is_a_failure(agent, server) -> None:
    server.fault, server.fault_every = "busy", 2
    assert agent("--num-sessions", 1, "--concurrency", 1).code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-sessions", "0"], "--num-sessions must be at least 1"),
        (["--num-turns", "0"], "--num-turns must be at least 1"),
        (["--input-len", "0"], "--input-len must be at least 1"),
        (["--prefix-len", "-1"], "--prefix-len must be at least 0"),
        (["--range-ratio", "1"], "--range-ratio must be from 0"),
        (["--request-timeout", "nan"], "--request-timeout must be above 0"),
        (["--tool-pause", "-1"], "--tool-pause must be from 0 to 3600"),
        (["--tool-pause", "nan"], "--tool-pause must be from 0 to 3600"),
        (["--concurrency", "0"], "--concurrency must be different numbers of at least 1"),
        (["--concurrency", "2", "2"], "--concurrency must be different numbers"),
        (["--concurrency", "5"], "raise --num-sessions"),
        (["--num-sessions", "999999999"], "ask for fewer or shorter sessions"),
        (["--trace", "/nowhere"], "cannot read /nowhere"),
        (["--trace", "/nowhere", "--num-turns", "2"], "--num-turns shapes drawn sessions"),
        (["--json", "/nowhere/x"], "cannot write /nowhere/x"),
        (["--svg", "/nowhere/x"], "cannot write /nowhere/x"),
        (["--vocab-size", "1"], "--vocab-size must be at least 2"),
        ([*CHAT[:2], "--tokenizer", "/nowhere"], "give --tokenizer"),
    ],
)
def test_mistakes(agent, words: list[str], message: str) -> None:
    ran = agent(*words)
    assert ran.code == 2
    assert message in ran.err
