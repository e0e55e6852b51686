"""Tables and numbers of loads."""

from hotshoe_bench.agent import Level
from hotshoe_bench.agent_report import render, summarize_level
from hotshoe_bench.record import Record
from hotshoe_bench.sessions import Plan, Turn

PLANS = [Plan(90, [Turn(10, 3), Turn(10, 3)])]


def record(tpot_ms: float, ended_s: float) -> Record:
    times = {"ttft_ms": 10.0, "e2e_ms": 10 + 2 * tpot_ms, "tpot_ms": tpot_ms}
    return Record(100, 3, 0.0, ended_s, 0.1, **times, itl_ms=[tpot_ms], cached_len=90)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_numbers_of_a_load() -> None:
    numbers = summarize_level(Level(1, [record(20.0, 0.5)]), PLANS)
    assert numbers["user_tokens_per_s"] == 50
    assert numbers["output_tokens_per_s"] == 6
    assert numbers["cached_share"] == 0.9
    assert numbers["prefix_share"] == (90 + 100) / (100 + 113)
    assert numbers["num_not_sent"] == 1
    assert numbers["e2e_per_token_ms_p50"] == 50 / 3


def test_tables() -> None:
    loads = [Level(n, [record(t, s)] * 2) for n, t, s in ((1, 10.0, 2.0), (4, 20.0, 1.0))]
    loads.append(Level(8, [record(30.0, 2.0), Record(1, 0, 0.0, 2.0, 0.1, failure="timeout")]))
    text = lines(render(loads, [summarize_level(load, PLANS) for load in loads]))
    assert "1 100.0 3.000 103.0 0.892 0.900 0 0 yes" in text
    assert "4 50.000 6.000 206.0 0.892 0.900 0 0 yes" in text
    assert any(line.startswith("8 33.333 1.500") and line.endswith("no") for line in text)
    assert "inter-token latency 4 20.000 20.000 20.000" in text
    assert "8 1 timeout" in text


def test_a_load_without_answers() -> None:
    load = Level(2, [Record(1, 0, 0.0, 2.0, 0.1, failure="timeout")])
    text = render([load], [summarize_level(load, PLANS)])
    assert "tokens/s of a user" not in text
    assert "cache" not in text
