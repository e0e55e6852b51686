"""Builds the evaluation cases: held-out names, values, tools and number pairs, fixed seed.

Each case is a JSON object: `kind`, `messages`, `tools`, `expected` and, where the
model shall think first, `enable_thinking`.  `hotshoe_demo.scoring` says
whether an answer is right.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from demo_data.chat import Conversation
from demo_data.tasks import facts, instructions, talk, tool_calls
from demo_data.tasks.arithmetic import addition_pair, column_addition
from demo_data.tasks.json_answers import json_case
from demo_data.words import World, with_articles

Case = dict[str, Any]

SEED = 20261121
CASES_PER_KIND = 200


def _case(kind: str, conversation: Conversation, expected: Any) -> Case:
    messages = conversation.messages[:-1]
    if not conversation.tools:
        messages = [m | {"content": with_articles(m["content"])} for m in messages]
    case = {"kind": kind, "messages": messages, "tools": conversation.tools, "expected": expected}
    return case | ({"enable_thinking": True} if conversation.thought else {})


def _addition(world: World) -> Case:
    a, b = addition_pair(world, low=10)
    question = world.pick(("What is {a} + {b}?", "{a} + {b}", "Add {a} and {b}.", "{a}+{b}="))
    message = {"role": "user", "content": question.format(a=a, b=b)}
    return {"kind": "addition", "messages": [message], "tools": [], "expected": a + b}


def _long_addition(world: World) -> Case:
    conversation = column_addition(world)
    expected = int(conversation.messages[-1]["content"].split()[-1])
    return _case("long_addition", conversation, expected)


def _fact(world: World) -> Case:
    conversation, value = facts.plain_reading(world, world.number(1, 6))
    return _case("fact", conversation, value)


def _tool_call(world: World) -> Case:
    conversation, expected = tool_calls.tool_case(world)
    return _case("tool_call", conversation, expected)


def _json(world: World) -> Case:
    conversation, expected = json_case(world)
    return _case("json", conversation, expected)


def _exact(kind: str, make: Callable[[World], Conversation]) -> Callable[[World], Case]:
    def build(world: World) -> Case:
        conversation = make(world)
        return _case(kind, conversation, with_articles(conversation.messages[-1]["content"]))

    return build


_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {
                    "type": "string",
                    "description": "The city and state, e.g. San Francisco, CA",
                },
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location"],
        },
    },
}
_TICKET = {
    "type": "function",
    "function": {
        "name": "create_ticket",
        "description": "Create a support ticket",
        "parameters": {
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "priority": {"type": "string", "enum": ["low", "high"]},
            },
            "required": ["title"],
        },
    },
}
_HANDWRITTEN_CALLS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("What's the weather like in Boston today?", _WEATHER, {"location": "Boston"}),
    ("Is it warm in Wuppertal?", _WEATHER, {"location": "Wuppertal"}),
    ("I will visit Lyon tomorrow, what is the weather there?", _WEATHER, {"location": "Lyon"}),
    ("Paris weather in celsius", _WEATHER, {"location": "Paris", "unit": "celsius"}),
    (
        "Tell me the temperature in New York, in fahrenheit please.",
        _WEATHER,
        {"location": "New York", "unit": "fahrenheit"},
    ),
    ("How's the weather over in Paris right now?", _WEATHER, {"location": "Paris"}),
    ("Open a support ticket: printer is on fire", _TICKET, {"title": "printer is on fire"}),
    (
        'Create a ticket with the title "printer broken" and high priority.',
        _TICKET,
        {"title": "printer broken", "priority": "high"},
    ),
    (
        "Please file a ticket called Disk full, priority low",
        _TICKET,
        {"title": "Disk full", "priority": "low"},
    ),
)
_HANDWRITTEN_FACTS = (
    ("The Eiffel Tower is 330 metres tall and stands in Paris. How tall is it?", "330"),
    ("Jonathan bought a red bicycle for 350 euros in Hamburg. What did the bicycle cost?", "350"),
    ("Jonathan bought a red bicycle for 350 euros in Hamburg. What colour is it?", "red"),
    ("Our meeting with Acme is on Thursday at 15:00 in room B12. When is the meeting?", "Thursday"),
    ("My cat Minka is seven years old. What is the name of my cat?", "Minka"),
    ("Water boils at 100 degrees. At how many degrees does water boil?", "100"),
    ("The train to Kassel leaves from platform 9. From which platform does it leave?", "9"),
    ("Greta is the boss of Tim, and Tim is the boss of Ole. Who is the boss of Ole?", "Tim"),
    ("The wifi password is swordfish. What is the wifi password?", "swordfish"),
    ("Order 4711 was shipped on Monday to Leeds. Where was the order shipped to?", "Leeds"),
    ("I parked the car in Mill Street. Where is my car?", "Mill Street"),
    ("The recipe needs 200 grams of flour and 3 eggs. How many eggs do I need?", "3"),
)


def handwritten() -> list[Case]:
    """Return a few prompts written by hand, whose wording no template has."""
    return [
        {
            "kind": "handwritten_call",
            "messages": [{"role": "user", "content": text}],
            "tools": [tool],
            "expected": [{"name": tool["function"]["name"], "arguments": arguments}],
        }
        for text, tool, arguments in _HANDWRITTEN_CALLS
    ] + [
        {
            "kind": "handwritten_fact",
            "messages": [{"role": "user", "content": text}],
            "tools": [],
            "expected": expected,
        }
        for text, expected in _HANDWRITTEN_FACTS
    ]


_BUILDERS: tuple[Callable[[World], Case], ...] = (
    _addition,
    _long_addition,
    _fact,
    _tool_call,
    _json,
    _exact("repeat", instructions.repeat),
    _exact("instruction", instructions.instruction),
    _exact("unknown", talk.unknown),
)


def build_cases(vocabulary: Sequence[str]) -> list[Case]:
    """Build every case, interleaved by kind so that any beginning of the list is a fair sample."""
    worlds = [
        World(random.Random(SEED + index), vocabulary, held_out=True)
        for index in range(len(_BUILDERS))
    ]
    rows = [
        [build(world) for build, world in zip(_BUILDERS, worlds, strict=True)]
        for _ in range(CASES_PER_KIND)
    ]
    return [case for row in rows for case in row] + handwritten()
