"""Mixes the tasks into conversations: single exchanges, chains of several, tools, system messages.

`conversation` is the only entry; the weights below are counts of conversations, not of tokens.
"""

from collections.abc import Callable

from demo_data import lexicon as lex
from demo_data.chat import Conversation, assistant, user
from demo_data.tasks import arithmetic, facts, instructions, talk, tool_calls
from demo_data.tasks.json_answers import json_answer
from demo_data.words import World, with_articles

Task = Callable[[World], Conversation]

_LOOSE: tuple[tuple[float, Task], ...] = (
    (8, arithmetic.calculation),
    (4, arithmetic.addition),
    (1.5, arithmetic.small_sum),
    (2, arithmetic.comparison),
    (2, arithmetic.counting),
    (13, talk.talk),
)
_EXACT: tuple[tuple[float, Task], ...] = (
    (3, arithmetic.story_problem),
    (15, facts.reading),
    (2.5, facts.remembering),
    (2.5, facts.own_words),
    (1, facts.comparing),
    (2, facts.yes_or_no),
    (10, json_answer),
    (18, instructions.instruction),
)
_ALONE: tuple[tuple[float, Task], ...] = (
    (2.5, facts.long_reading),
    (2, arithmetic.column_addition),
    (1.5, facts.thoughtful_reading),
    (1.5, talk.persona),
    (15, tool_calls.tool_use),
    (2, tool_calls.two_calls),
    (1.5, tool_calls.no_fitting_tool),
    (1, tool_calls.sum_beside_tools),
    (2, lambda world: tool_calls.tools_unused(world, talk.talk(world))),
    (1, lambda world: tool_calls.tools_unused(world, facts.reading(world))),
)
_SYSTEM = (
    "You are a helpful assistant.",
    "You are the Hotshoe demo model.",
    "You are a friendly assistant.",
    "You are a helpful, honest assistant. Answer the question.",
    "Answer the user's question.",
    "Be brief and correct.",
    "You are a small but careful model.",
    "You are an assistant. Be polite.",
    "Help the user.",
)
_MANNERS = "helpful kind patient polite precise quick careful cheerful calm honest".split()
_DIRECT = ("I can answer this directly.", "This is easy.", "I know what to do.")


def _loosen(world: World, conversation: Conversation) -> Conversation:
    """Write the question as people type: without a capital, a final mark, or with a `please`."""
    message = conversation.messages[-2]
    text = message["content"]
    if world.chance(0.2):
        text = text.rstrip("?.!")
    if world.chance(0.2):
        text = text[0].lower() + text[1:]
    if world.chance(0.05):
        text = world.pick(("please ", "hey, ", "ok, ", "so, ")) + text[0].lower() + text[1:]
    if world.chance(0.03):
        text += world.pick((" :)", "!!", " thanks", " please", "??"))
    message["content"] = text
    return conversation


def _exchange(world: World) -> Conversation:
    if world.chance(0.4):
        return _loosen(world, world.pick_weighted(_LOOSE)(world))
    return world.pick_weighted(_EXACT)(world)


def _system(world: World) -> str:
    if world.chance(0.8):
        return world.pick(_SYSTEM)
    kind, thing = world.pick(_MANNERS), world.pick(lex.THINGS)
    return world.pick((f"You are a {kind} assistant for {thing} questions.", f"Be {kind}."))


def _starts_with_system(conversation: Conversation) -> bool:
    return bool(conversation.messages[0]["role"] == "system")


def _chain(world: World, count: int) -> Conversation:
    """Put several exchanges into one conversation; the later ones do not depend on the earlier."""
    joined = Conversation()
    while count > 0:
        part = _exchange(world)
        answer = part.messages[-1]["content"]
        unknowable = answer in (talk.dialogue.DO_NOT_KNOW, facts.UNKNOWN)
        if joined.messages and (_starts_with_system(part) or unknowable):
            continue
        joined.messages += part.messages
        count -= 1
    return joined


def _introduced(world: World) -> Conversation:
    """Introduce oneself, talk of something else, then ask for what was told."""
    messages, questions = facts.introduction(world)
    for _ in range(world.number(1, 3)):
        part = _exchange(world)
        if (
            not _starts_with_system(part)
            and part.messages[-1]["content"] != talk.dialogue.DO_NOT_KNOW
        ):
            messages += part.messages
    question, reply = world.pick(questions)
    return Conversation([*messages, user(question), assistant(reply)])


def conversation(world: World) -> Conversation:
    """Make one training conversation."""
    draw = world.rng.random()
    if draw < 0.02:
        made = _introduced(world)
    elif draw < 0.33:
        made = world.pick_weighted(_ALONE)(world)
    elif draw < 0.75:
        made = _exchange(world)
    else:
        made = _chain(world, world.pick((2, 2, 2, 3, 3, 4, 5, 8)))
    if not _starts_with_system(made) and world.chance(0.3):
        made.messages.insert(0, {"role": "system", "content": _system(world)})
    if not made.tools:
        for message in made.messages:
            message["content"] = with_articles(message["content"])
    if not made.thought and not made.tools and world.chance(0.02):
        made.thought = world.pick(_DIRECT)
    return made
