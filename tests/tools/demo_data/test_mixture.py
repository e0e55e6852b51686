"""Conversations alternate properly and end with an answer."""

import itertools
import random

from demo_data.mixture import conversation
from demo_data.words import World


def test_roles_follow_each_other(worlds) -> None:
    kinds = {"tools": 0, "thought": 0, "system": 0, "several": 0}
    for world in worlds(800):
        made = conversation(world)
        roles = [message["role"] for message in made.messages]
        kinds["tools"] += bool(made.tools)
        kinds["thought"] += bool(made.thought)
        kinds["system"] += roles[0] == "system"
        kinds["several"] += roles.count("user") > 1
        assert roles[-1] == "assistant"
        assert "system" not in roles[1:]
        for before, after in itertools.pairwise(roles):
            assert (before, after) in {
                ("system", "user"),
                ("user", "assistant"),
                ("assistant", "user"),
                ("assistant", "tool"),
                ("tool", "tool"),
                ("tool", "assistant"),
            }
    assert all(count > 10 for count in kinds.values()), kinds


def test_the_same_seed_makes_the_same_conversation(worlds, vocabulary) -> None:
    (world,) = worlds(1)
    seed = world.number(0, 10**9)
    first, second = (conversation(World(random.Random(seed), vocabulary)) for _ in range(2))
    assert first == second
