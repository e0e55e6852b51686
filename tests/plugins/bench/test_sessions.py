"""Plans from a seed and from a trace, and the prompts that sessions send."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.errors import ConfigError
from hotshoe_bench.datasets import Sizes
from hotshoe_bench.prompts import IdWriter
from hotshoe_bench.sessions import (
    Plan,
    Turn,
    check_size,
    draw_plans,
    prefix_share,
    read_trace,
    write_prefixes,
    write_sessions,
)

LENGTHS = st.integers(1, 40)
PLANS = st.builds(
    Plan,
    st.sampled_from([0, 5, 60]),
    st.lists(st.builds(Turn, LENGTHS, LENGTHS), min_size=1, max_size=6),
)


def draw(seed: int, pause_s: float = 1.0) -> list[Plan]:
    return draw_plans(4, 3, Sizes(50, 20, 0.5, 300), pause_s, random.Random(seed))


@given(st.lists(PLANS, min_size=1, max_size=4))
def test_a_prompt_begins_with_the_one_before(plans: list[Plan]) -> None:
    writer, rng = IdWriter(4096), random.Random(0)
    prefixes = write_prefixes(plans, writer, rng)
    sessions = write_sessions(plans, prefixes, writer, rng)
    known = total = 0
    for session in sessions:
        before = prefixes[session.plan.prefix_len]
        for number, turn in enumerate(session.plan.turns):
            query = session.query(number, chat=False)
            assert query.prompt[: len(before)] == before
            assert len(query.prompt) == query.input_len
            assert query.output_len == turn.output_len
            known, total = known + len(before), total + len(query.prompt)
            before = query.prompt
    assert prefix_share(plans) == known / total


def test_a_chat_speaks_by_turns() -> None:
    class Words:
        def draw(self, length: int, rng: random.Random) -> list[int]:
            return [7] * length

        def write(self, token_ids: list[int]) -> str:
            return " ".join("x" for _ in token_ids)

    plans = [Plan(3, [Turn(1, 2), Turn(2, 9)]), Plan(0, [Turn(1, 1)])]
    prefixes = write_prefixes(plans, Words(), random.Random(0))
    long, bare = write_sessions(plans, prefixes, Words(), random.Random(0))
    assert long.query(1, chat=True).prompt == [
        {"role": "system", "content": "x x x"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "x x"},
        {"role": "user", "content": "x x"},
    ]
    assert bare.query(0, chat=True).prompt == [{"role": "user", "content": "x"}]


def test_a_seed_repeats_the_plans() -> None:
    assert draw(1) == draw(1) != draw(2)
    for plan in draw(1):
        assert plan.prefix_len == 300
        assert [turn.pause_s > 0 for turn in plan.turns] == [False, True, True]
        assert all(25 <= turn.input_len <= 75 for turn in plan.turns)
    assert all(turn.pause_s == 0 for plan in draw(1, pause_s=0.0) for turn in plan.turns)


def test_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(
        '{"prefix_len": 9, "turns": [{"input_len": 3, "output_len": 2}, '
        '{"input_len": 4, "output_len": 1, "pause_s": 0.5}]}\n\n'
        '{"prefix_len": 0, "turns": [{"input_len": 1, "output_len": 1}]}\n'
    )
    first, second = read_trace(path)
    assert first == Plan(9, [Turn(3, 2), Turn(4, 1, 0.5)])
    assert (first.contexts, first.num_tokens) == ([12, 18], 19)
    assert second.contexts == [1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "holds no session"),
        ("{", "line 1"),
        ("\udc80".encode("utf-8", "surrogateescape").decode("latin-1"), "line 1"),
        ("[" * 100_000, "line 1"),
        ('{"turns": []}', "line 1"),
        ('{"prefix_len": 1, "turns": []}', "$.turns"),
        ('{"prefix_len": -1, "turns": []}', "$.prefix_len"),
        ('{"prefix_len": 1, "turns": [{"input_len": 0, "output_len": 1}]}', "turns[0].input_len"),
        ('{"prefix_len": 1, "turns": [{"input_len": 1, "outputlen": 1}]}', "outputlen"),
        (
            '{"prefix_len": 1, "turns": [{"input_len": 1, "output_len": 1, "pause_s": -1}]}',
            "turns[0].pause_s",
        ),
    ],
)
def test_traces_that_are_none(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(line)
    with pytest.raises(ConfigError) as raised:
        read_trace(path)
    assert message in str(raised.value)


def test_too_many_tokens() -> None:
    check_size(50_000_000)
    with pytest.raises(ConfigError, match="ask for fewer or shorter sessions"):
        check_size(50_000_001)
