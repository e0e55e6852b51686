"""Flags of `bench agent` and the sessions that they make; mistakes are in test_agent."""

import random
from argparse import Namespace

from hotshoe.cli.parser import Parser
from hotshoe_bench.agent_options import add_flags, check, make_plans, make_writer
from hotshoe_bench.prompts import IdWriter, TextWriter
from hotshoe_bench.sessions import prefix_share


def parse(*words: str) -> Namespace:
    parser = Parser("hotshoe bench agent", "")
    add_flags(parser)
    args = parser.parse(words)
    check(args)
    return args


def test_defaults_hit_the_prefix_cache() -> None:
    plans = make_plans(parse(), random.Random(0))
    assert len(plans) == 16
    assert {len(plan.turns) for plan in plans} == {8}
    assert prefix_share(plans) > 0.9


def test_writers() -> None:
    assert isinstance(make_writer(parse(), "any"), IdWriter)
    chat = parse("--endpoint", "/v1/chat/completions")
    assert isinstance(make_writer(chat, "demo"), TextWriter)
