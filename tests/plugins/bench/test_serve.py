"""`hotshoe bench serve` against a server whose delays are known."""

import json
from pathlib import Path

import pytest

ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
DEMO = ("--tokenizer", "demo")


def results(bench, tmp_path: Path, *words: object) -> dict:
    path = tmp_path / "out.json"
    ran = bench("--output-json", path, *words)
    assert ran.code == 0, ran
    return json.loads(path.read_text())


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_latencies_are_the_servers(bench, server, tmp_path: Path, endpoint: str) -> None:
    server.first_s, server.gap_s = 0.1, 0.03
    words = ("--endpoint", endpoint, *DEMO, "--max-concurrency", 4)
    numbers = results(bench, tmp_path, *words)["summary"]
    assert numbers["num_completed"] == 8
    assert numbers["output_tokens"] == 32
    assert numbers["input_tokens"] == 56  # the server says 7 tokens a prompt
    # Delays are lower bounds; how much the machine adds is its own affair.
    for name, least in {"ttft": 100, "itl": 30, "tpot": 30, "e2e": 190}.items():
        assert least <= numbers[f"{name}_ms_p50"] < 60_000
    assert numbers["ttft_ms_p50"] < numbers["e2e_ms_p50"]
    assert numbers["requests_per_s"] == pytest.approx(8 / numbers["duration_s"])
    assert numbers["output_tokens_per_s"] == pytest.approx(32 / numbers["duration_s"])
    assert numbers["tokens_per_s"] == pytest.approx(88 / numbers["duration_s"])


def test_concurrency_is_kept(bench, server) -> None:
    server.gather, server.first_s = 3, 0.1
    assert bench("--max-concurrency", 3, "--num-prompts", 12).code == 0
    assert server.most_open == 3
    assert len(server.seen) == 12


def test_without_a_limit_all_are_sent_at_once(bench, server) -> None:
    server.gather = 12
    assert bench("--num-prompts", 12).code == 0
    assert server.most_open == 12


def test_the_rate_of_an_open_load_is_kept(bench, server, tmp_path: Path) -> None:
    server.gather = 20  # a server that answers nobody before the last does not slow it down
    words = ("--request-rate", 50, "--burstiness", 1e6, "--num-prompts", 20)
    document = results(bench, tmp_path, *words)
    due = [request["sent_s"] - request["lag_ms"] / 1e3 for request in document["requests"]]
    assert due[-1] - due[0] == pytest.approx(19 / 50, abs=0.01)
    assert all(request["lag_ms"] > -5 for request in document["requests"])
    assert server.most_open == 20


def test_goodput(bench, server, tmp_path: Path) -> None:
    server.first_s, server.gap_s = 0.05, 0.01
    numbers = results(bench, tmp_path, "--goodput", "ttft:5000", "tpot:5000")["summary"]
    assert numbers["goodput_share"] == 1
    assert numbers["goodput_requests_per_s"] == pytest.approx(numbers["requests_per_s"])
    numbers = results(bench, tmp_path, "--goodput", "ttft:5000", "tpot:1")["summary"]
    assert numbers["goodput_share"] == 0


@pytest.mark.parametrize(
    ("fault", "cause", "detail"),
    [
        ("busy", "HTTP 429", "too many requests"),
        ("cut", "connection lost", ""),
        ("error", "error in stream", "the engine has stopped"),
        ("unfinished", "stream ended early", "after 4 tokens"),
        ("empty", "empty answer", "length"),
        ("short", "wrong length", "3 tokens instead of 4"),
        ("sleep", "timeout", "after 2 s"),
    ],
)
def test_failures_are_counted_by_cause(
    bench, server, tmp_path: Path, fault: str, cause: str, detail: str
) -> None:
    server.fault, server.fault_every = fault, 4
    words = ("--request-timeout", 2 if fault == "sleep" else 60)
    document = results(bench, tmp_path, *words)
    assert document["summary"]["num_completed"] == 6
    assert document["summary"]["num_failed"] == 2
    assert document["failures"].keys() == {cause}
    assert document["failures"][cause]["count"] == 2
    assert detail in document["failures"][cause]["example"]
    ran = bench(*words)
    assert cause in ran.out and "requests failed" in ran.out


def test_short_answers_are_fine_where_they_may_end(bench, server) -> None:
    server.fault = "short"
    assert bench("--no-ignore-eos").code == 0
    assert "ignore_eos" not in server.seen[0]


def test_nothing_completed_is_a_failure(bench, server) -> None:
    server.fault = "busy"
    ran = bench()
    assert ran.code == 1
    assert "HTTP 429" in ran.out


def test_a_failing_warm_up_ends_it(bench, server) -> None:
    server.fault = "busy"
    ran = bench("--num-warmups", 2)
    assert ran.code == 2
    assert "every warm-up request failed: HTTP 429 too many requests" in ran.err
    assert len(server.seen) == 2


def test_warm_up_is_not_counted(bench, server, tmp_path: Path) -> None:
    document = results(bench, tmp_path, "--num-warmups", 3)
    assert len(server.seen) == 11
    assert len(document["requests"]) == 8


def test_what_is_sent(bench, server) -> None:
    words = ("--prefix-len", 6, "--num-prefixes", 2, "--extra-body", '{"top_k": 1}')
    assert bench(*words, "--max-concurrency", 1).code == 0
    prompts = [asked["prompt"] for asked in server.seen]
    assert {len(prompt) for prompt in prompts} == {11}
    assert len({tuple(prompt[:6]) for prompt in prompts}) == 2
    assert len({tuple(prompt) for prompt in prompts}) == 8
    first = server.seen[0]
    assert first["model"] == "fake"
    assert first["max_tokens"] == 4
    assert first["ignore_eos"] is True
    assert first["top_k"] == 1
    assert first["stream_options"] == {"include_usage": True}


def test_a_seed_repeats_the_prompts(bench, server) -> None:
    for seed in (1, 1, 2):
        assert bench("--seed", seed, "--num-prompts", 1).code == 0
    assert bench("--num-prompts", 1).code == bench("--num-prompts", 1).code == 0
    prompts = [asked["prompt"] for asked in server.seen]
    assert prompts[0] == prompts[1] != prompts[2]
    assert prompts[3] != prompts[4]  # fresh ones, which no cache knows


def test_the_key_is_sent_and_kept_out_of_results(bench, server, tmp_path: Path) -> None:
    server.key = "sesame-42"
    ran = bench()
    assert ran.code == 2
    assert "give --api-key-file" in ran.err
    path = tmp_path / "key"
    path.write_text("sesame-42\n")
    document = results(bench, tmp_path, "--api-key-file", path)
    assert "sesame" not in json.dumps(document)


def test_nobody_answers(bench) -> None:
    ran = bench("--base-url", "http://127.0.0.1:9")
    assert ran.code == 2
    assert "no server answers at http://127.0.0.1:9" in ran.err
    ran = bench("--base-url", "http://127.0.0.1:9", "--model", "any")
    assert ran.code == 1
    assert "cannot connect" in ran.out


def test_a_server_without_models(bench, server) -> None:
    server.models = []
    ran = bench()
    assert ran.code == 2
    assert "give --model" in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-prompts", "0"], "--num-prompts must be at least 1, not 0"),
        (["--num-warmups", "-1"], "--num-warmups must be at least 0"),
        (["--max-concurrency", "0"], "--max-concurrency must be at least 1"),
        (["--request-rate", "0"], "--request-rate must be above 0"),
        (["--request-rate", "nan"], "--request-rate must be above 0"),
        (["--burstiness", "-1"], "--burstiness must be above 0"),
        (["--request-rate", "1", "--max-concurrency", "1"], "contradict each other"),
        (["--base-url", "localhost"], "must look like http://"),
        (["--base-url", "http://x/v1"], "must look like http://"),
        (["--api-key-file", "/nowhere"], "cannot read /nowhere"),
        (["--goodput", "ttfb:5"], "not 'ttfb'"),
        (["--extra-body", "[]"], "no JSON object"),
        (["--output-json", "/nowhere/x"], "cannot write /nowhere/x"),
        (["--output-json", "/"], "cannot write /"),
        (["--input-len", "0"], "--input-len must be at least 1"),
        (["--range-ratio", "1"], "--range-ratio must be from 0 to below 1"),
        (["--vocab-size", "1"], "--vocab-size must be at least 2"),
        (["--text", "--tokenizer", "/nowhere"], "give --tokenizer"),
        (["--output-len", "0"], "--output-len must be at least 1"),
        (["--conversations", "/nowhere", *DEMO], "cannot read /nowhere"),
        (["--conversations", "/nowhere", *DEMO, "--output-len", "0"], "--output-len must be at"),
        *(
            (["--conversations", "/nowhere", *DEMO, *flag.split()], f"{flag.split()[0]} shapes")
            for flag in (
                "--input-len 0",
                "--range-ratio 0.5",
                "--prefix-len 8",
                "--num-prefixes 2",
                "--vocab-size 99",
                "--text",
            )
        ),
    ],
)
def test_mistakes(bench, words: list[str], message: str) -> None:
    ran = bench(*words)
    assert ran.code == 2
    assert message in ran.err


def test_an_empty_key_file(bench, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("\n")
    ran = bench("--api-key-file", path)
    assert ran.code == 2
    assert "must hold one key" in ran.err
