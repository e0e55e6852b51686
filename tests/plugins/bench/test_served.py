"""`hotshoe bench serve` against `hotshoe serve`: both count alike, and agree on times."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.plugins.served import Served, serve

from hotshoe.cli.main import main


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve("demo", "--platform", "null") as found:
        yield found


def metrics(served: Served) -> dict[str, float]:
    families = text_string_to_metric_families(served.get("/metrics"))
    return {s.name: s.value for f in families for s in f.samples if len(s.labels) == 1}


def grown(served: Served, before: dict[str, float], num_requests: int) -> dict[str, float]:
    """Return by how much the metrics have grown once that many requests' ends have been counted."""
    end_s = time.monotonic() + 60
    while True:
        now = metrics(served)
        found = {name: now[name] - before[name] for name in before}
        if found["hotshoe_request_seconds_count"] == num_requests:
            return found
        assert time.monotonic() < end_s, found


def run(served: Served, path: Path, *words: str) -> dict:
    base = ["bench", "serve", "--base-url", served.url, "--output-json", str(path)]
    assert main([*base, "--num-warmups", "0", *words]) == 0
    return json.loads(path.read_text())


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_both_sides_count_alike(served: Served, tmp_path: Path, endpoint: str) -> None:
    before = metrics(served)
    words = ("--num-prompts", "12", "--input-len", "40", "--output-len", "9")
    found = run(served, tmp_path / "o", *words, "--endpoint", endpoint, "--max-concurrency", "3")
    grew = grown(served, before, 12)
    numbers = found["summary"]
    assert (numbers["num_completed"], numbers["output_tokens"]) == (12, 108)
    if endpoint == "/v1/completions":
        assert numbers["input_tokens"] == 480
    assert grew["hotshoe_generated_tokens_total"] == 108
    assert grew["hotshoe_request_prompt_tokens_sum"] == numbers["input_tokens"]
    name = "hotshoe_time_to_first_token_seconds"
    mean_ms = 1e3 * grew[f"{name}_sum"] / grew[f"{name}_count"]
    # The client sees the same first token, a little later.
    assert 0.2 * mean_ms < numbers["ttft_ms_mean"]
    assert mean_ms < numbers["ttft_ms_mean"] + 1


def test_shared_prefixes_are_found(served: Served, tmp_path: Path) -> None:
    before = metrics(served)
    words = ("--num-prompts", "8", "--prefix-len", "64", "--input-len", "16", "--output-len", "2")
    run(served, tmp_path / "o", *words, "--max-concurrency", "1")
    name = "hotshoe_prefix_cache_hit_tokens_total"
    assert metrics(served)[name] - before[name] == 7 * 64


def test_text(served: Served, tmp_path: Path) -> None:
    words = ("--text", "--num-prompts", "4", "--input-len", "33", "--output-len", "3")
    assert run(served, tmp_path / "o", *words)["summary"]["input_tokens"] == 132


def test_refusals_are_counted(tmp_path: Path) -> None:
    words = ("--max-num-seqs", "1", "--max-num-queued-reqs", "1")
    with serve("demo", "--platform", "null", *words) as served:
        load = ("--num-prompts", "40", "--input-len", "200", "--output-len", "300")
        found = run(served, tmp_path / "o", *load)
    numbers, failed = found["summary"], found["failures"]
    assert failed.keys() == {"HTTP 429"}
    assert numbers["num_completed"] + failed["HTTP 429"]["count"] == 40
    assert numbers["num_completed"] >= 1
    assert failed["HTTP 429"]["count"] >= 1


def test_agents_find_their_prefixes(served: Served, tmp_path: Path) -> None:
    words = ("--prefix-len", "256", "--input-len", "16", "--output-len", "4", "--num-turns", "3")
    load = ("--num-sessions", "3", "--concurrency", "1", "3", "--tool-pause", "0.01")
    path = tmp_path / "o"
    base = ["bench", "agent", "--base-url", served.url, "--json", str(path)]
    assert main([*base, *words, *load]) == 0
    numbers = json.loads(path.read_text())["summary"]
    for sessions in (1, 3):
        assert numbers[f"num_completed@{sessions}"] == 9
        # Known tokens are found but for the rest of a block, at most 15 of 272.
        known, found = numbers[f"prefix_share@{sessions}"], numbers[f"cached_share@{sessions}"]
        assert known - 16 / 272 <= found <= known + 1e-9
