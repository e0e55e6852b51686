"""Tool calls: offered tools as JSON, a request, the call, and often the tool's answer in words.

Half of the tools come from `catalogue.py`, half are put together from any verb, thing and
parameters, so that the model reads the description instead of knowing the tool.
"""

from dataclasses import dataclass
from typing import Any

from demo_data import lexicon as lex
from demo_data.chat import Conversation, Message, assistant, calls, tool_result, user
from demo_data.tasks.arithmetic import calculation
from demo_data.tasks.catalogue import CATALOGUE, Parameter
from demo_data.tasks.json_answers import join
from demo_data.words import Value, World, spoken, with_articles

NO_TOOL = "I have no tool for that."
_TYPES = {"count": "integer", "age": "integer", "number": "integer", "id": "integer"}
_TYPES |= {"price": "integer", "year": "integer", "decimal": "number", "flag": "boolean"}
_FREE_KINDS = (
    "name city count word code time date email phrase id colour thing full_name decimal file number "
    "language object room food place flag"
).split()


@dataclass(frozen=True)
class Tool:
    """One tool as offered in a prompt, with the ways to ask for it.

    Attributes:
        name: The name in the description and in the call.
        description: One sentence.
        parameters: (name, parameter) in the order that requests use.
        requests: Templates in which `{0}`, `{1}` … are the parameters.
        result: (key, kind of value) pairs of the tool's answer.
        key: What the tool is about; two offered tools never share it.
    """

    name: str
    description: str
    parameters: tuple[tuple[str, Parameter], ...]
    requests: tuple[str, ...]
    result: tuple[tuple[str, str], ...]
    key: str


def catalogue_tool(world: World) -> Tool:
    """Take a well-known tool under one of its names."""
    kind = world.pick(CATALOGUE)
    named = tuple((world.pick(p.names), p) for p in kind.parameters)
    return Tool(
        world.pick(kind.names), kind.description, named, kind.requests, kind.result, kind.names[0]
    )


_MENTIONS = ("{n} {v}", "{n} {v}", "{v} as {n}", "the {n} {v}", "{n} set to {v}", "{v} {n}")
_LISTED = ("{n}={v}", "{n}: {v}", "{n} = {v}", "{n} {v}")


def _free_requests(world: World, verb: str, thing: str, tool: str, names: list[str]) -> list[str]:
    """Write ways to ask for a tool; parameters appear in their order."""
    said, slots = verb.replace("_", " "), [f"{{{i}}}" for i in range(len(names))]
    do = world.pick((f"{said} the {thing}", f"{said} a {thing}", f"{said} {thing}"))
    if not names:
        return [_capital(do) + ".", f"I want to {do}.", f"Call {tool}.", f"{_capital(do)} now."]
    spoken_names = [name.replace("_", " ") for name in names]
    mention, listed = world.pick(_MENTIONS), world.pick(_LISTED)
    each = [mention.format(n=n, v=v) for n, v in zip(spoken_names, slots, strict=True)]
    equal = ", ".join(listed.format(n=n, v=v) for n, v in zip(names, slots, strict=True))
    colons = ", ".join(listed.format(n=n, v=v) for n, v in zip(spoken_names, slots, strict=True))
    sentences = " ".join(f"The {n} is {v}." for n, v in zip(spoken_names, slots, strict=True))
    return [
        f"{_capital(do)} with {join(each)}.",
        f"{_capital(do)} for {join(each)}.",
        f"{_capital(do)}. {sentences}",
        f"I want to {do}. {sentences}",
        f"I need you to {do} with {join(each)}.",
        f"{_capital(do)}: {colons}",
        f"{do}, {colons}",
        f"Call {tool} with {equal}.",
        f"Use {tool} with {join(each)}.",
        f"Run {tool}({equal})",
    ]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _free_parameter(world: World, name: str) -> Parameter:
    if world.chance(0.08):
        return Parameter((name,), "word", tuple(world.words(world.number(2, 4))))
    return Parameter((name,), world.pick(_FREE_KINDS).replace("_", " "))


def free_tool(world: World) -> Tool:
    """Put a tool together; its name is on this world's side of the held-out split."""

    def pair() -> tuple[str, str]:
        return world.pick(lex.VERBS), world.pick(lex.THINGS)

    verb, thing = world.fresh(pair)
    name = f"{verb}_{thing}"
    style = world.rng.random()
    if style < 0.1:
        name = verb.replace("_", "") + thing.capitalize()
    elif style < 0.15:
        name = f"{thing}_{verb}"
    count = world.pick((0, 1, 1, 1, 2, 2, 2, 3, 3, 4))
    names: dict[str, None] = {}
    while len(names) < count:
        first = world.pick(lex.THINGS) if world.chance(0.8) else world.word().lower()
        names[f"{first}_{world.pick(lex.THINGS)}" if world.chance(0.15) else first] = None
    parameters = tuple((key, _free_parameter(world, key)) for key in names)
    said = verb.replace("_", " ")
    requests = tuple(map(with_articles, _free_requests(world, verb, thing, name, list(names))))
    description = with_articles(f"{said.capitalize()} {world.pick(('a', 'the'))} {thing}.")
    keys = world.sample(lex.THINGS, world.number(1, 2))
    result = tuple((key, world.pick(_FREE_KINDS).replace("_", " ")) for key in keys)
    return Tool(name, description, parameters, requests, result, f"{verb} {thing}")


def _description(world: World, text: str) -> str:
    """Vary the one sentence that says what a tool does."""
    bare = text[0].lower() + text.rstrip(".")[1:]
    return world.pick_weighted(
        (
            (10, text),
            (3, text.rstrip(".")),
            (1, f"Use this to {bare}."),
            (1, f"A tool to {bare}"),
            (1, f"This function can {bare}."),
            (1, f"{text} Call it when the user asks for it."),
        )
    )


def _explanation(world: World, name: str, parameter: Parameter) -> str:
    said = name.replace("_", " ")
    text = world.pick((f"The {said}", f"The {said} to use", f"{_capital(said)}", f"Which {said}"))
    if world.chance(0.25) and not parameter.choices:
        example = spoken(world.value(parameter.kind))
        return world.pick((f"{text}, e.g. {example}", f"{text}, for example {example}."))
    return text + world.pick((".", ""))


def describe(world: World, tool: Tool) -> dict[str, Any]:
    """Write a tool as its JSON description, with the variety that clients show."""
    properties: dict[str, Any] = {}
    explain = world.chance(0.5)
    for name, parameter in tool.parameters:
        properties[name] = {"type": _TYPES.get(parameter.kind, "string")}
        if explain:
            properties[name]["description"] = _explanation(world, name, parameter)
        if parameter.choices:
            properties[name]["enum"] = list(parameter.choices)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if world.chance(0.8):
        required = [name for name, parameter in tool.parameters if not parameter.choices]
        schema["required"] = required
    if world.chance(0.1):
        schema["additionalProperties"] = False
    said = _description(world, tool.description)
    function = {"name": tool.name, "description": said, "parameters": schema}
    if world.chance(0.1):
        del function["description"]
    if world.chance(0.1):
        return function
    return {"type": "function", "function": function}


def request(world: World, tool: Tool) -> tuple[str, dict[str, Value]]:
    """Ask for a tool; return the request and the arguments of the right call."""
    template = world.pick(tool.requests)
    values: list[Value] = []
    for _, parameter in tool.parameters:
        value = world.pick(parameter.choices) if parameter.choices else world.value(parameter.kind)
        while value in values and parameter.kind != "flag" and not parameter.choices:
            value = world.value(parameter.kind)
        values.append(value)
    arguments = {
        name: value
        for index, ((name, _), value) in enumerate(zip(tool.parameters, values, strict=True))
        if f"{{{index}}}" in template
    }
    shown = [
        f'"{value}"' if parameter.kind == "phrase" and '"' not in template and world.chance(0.4)
        else spoken(value)
        for value, (_, parameter) in zip(values, tool.parameters, strict=True)
    ]  # fmt: skip
    return _politely(world, template.format(*shown)), arguments


_BEFORE = (
    "Please {t}", "Can you {t}", "Could you {t}", "Could you please {t}", "I would like you to {t}",
    "Hey, {t}", "Hello! {T}", "Would you {t}", "I need help. {T}", "ok, {t}", "{t}",
)  # fmt: skip
_AFTER = (
    "{b} please",
    "{b}, please.",
    "{b} for me",
    "{b} now",
    "{b}!",
    "{t} Thanks!",
    "{t} Thank you.",
)
_VERBAL = (
    *(verb.replace("_", " ").capitalize() for verb in lex.VERBS),
    "Tell", "Give", "Send", "Put", "Find", "Book", "Look", "Show", "Play", "Write", "Take", "Wake",
    "Text", "Switch", "Heat", "Call", "Phone", "Define", "Roll", "Note", "Remind", "Get", "Add",
)  # fmt: skip


def _politely(world: World, text: str) -> str:
    """Wrap a request in the small words that people use."""
    if world.chance(0.2) and text.startswith(_VERBAL):
        text = world.pick(_BEFORE).format(t=text[0].lower() + text[1:], T=text)
        if text.startswith(("Can", "Could", "Would")):
            text = text.rstrip(".") + "?"
    if world.chance(0.12) and text[-1] in "?.!":
        text = world.pick(_AFTER).format(t=text, b=text.rstrip("?.!"))
    elif world.chance(0.08):
        text = text.rstrip("?.!")
    return text


def offer(world: World, count: int) -> list[Tool]:
    """Choose tools that differ in what they do."""
    tools: dict[str, Tool] = {}
    for _ in range(count):
        tool = catalogue_tool(world) if world.chance(0.45) else free_tool(world)
        if tool.name not in {other.name for other in tools.values()}:
            tools.setdefault(tool.key, tool)
    return list(tools.values())


def tool_case(world: World) -> tuple[Conversation, list[dict[str, Any]]]:
    """Ask for one offered tool; return the conversation and the expected calls."""
    tools = offer(world, world.pick((1, 1, 2, 2, 3, 4)))
    chosen = world.pick(tools)
    text, arguments = request(world, chosen)
    expected = [{"name": chosen.name, "arguments": arguments}]
    messages: list[Message] = [user(text), calls((chosen.name, arguments))]
    return Conversation(messages, [describe(world, tool) for tool in tools]), expected


def answer_from_result(world: World, tool: Tool) -> tuple[dict[str, Value], str]:
    """Make up a tool's answer and the sentence that reports it."""
    result = {key: world.value(kind) for key, kind in tool.result}
    said = join([f"the {key} is {spoken(value)}" for key, value in result.items()])
    return result, said[0].upper() + said[1:] + "."


def tool_use(world: World) -> Conversation:
    """Offer tools, ask, call; in half of the examples also read the tool's answer."""
    tools = offer(world, world.pick((1, 1, 2, 2, 3, 4)))
    chosen = world.pick(tools)
    text, arguments = request(world, chosen)
    conversation = Conversation([], [describe(world, tool) for tool in tools])
    messages: list[Message] = [user(text), calls((chosen.name, arguments))]
    if world.chance(0.5):
        result, said = answer_from_result(world, chosen)
        messages += [tool_result(result), assistant(said)]
        if world.chance(0.3):
            again = world.pick(tools)
            text, arguments = request(world, again)
            messages += [user(text), calls((again.name, arguments))]
    elif world.chance(0.08):
        values = ", ".join(f"{key} is {spoken(value)}" for key, value in arguments.items())
        conversation.thought = f"The tool {chosen.name} fits." + (f" {values}." if values else "")
    conversation.messages = messages
    return conversation


_PAIRED = frozenset("city name word room code id food file".split())


def _same_tool_twice(
    world: World, tool: Tool
) -> tuple[str, dict[str, Value], dict[str, Value]] | None:
    """Ask for two values of a tool's only mentioned parameter, as in `in Paris and in Rome`."""
    templates = [t for t in tool.requests if "{0}" in t and "{1}" not in t]
    if not templates or tool.parameters[0][1].kind not in _PAIRED:
        return None
    name, parameter = tool.parameters[0]
    left, right = world.distinct(parameter.kind, 2)
    template = world.pick(templates)
    if " in {0}" in template and world.chance(0.5):
        text = template.replace(" in {0}", f" in {left} and in {right}")
    else:
        text = template.format(f"{left} and {right}")
    return _politely(world, text), {name: left}, {name: right}


def two_calls(world: World) -> Conversation:
    """Ask for the same tool twice, or for two tools, in one message."""
    tools = offer(world, world.number(1, 3))
    first, second = world.pick(tools), world.pick(tools)
    messages: list[Message]
    if world.chance(0.4):
        twice = _same_tool_twice(world, first)
        if twice:
            text, call, other = twice
            messages = [user(text), calls((first.name, call), (first.name, other))]
            return Conversation(messages, [describe(world, tool) for tool in tools])
    (one, left), (two, right) = request(world, first), request(world, second)
    if one == two:
        return tool_use(world)
    messages = [
        user(f"{one} {world.pick(('And then: ', 'And: ', 'Also: ', ''))}{two}"),
        calls((first.name, left), (second.name, right)),
    ]
    if world.chance(0.4):
        (got, said), (more, also) = (
            answer_from_result(world, first),
            answer_from_result(world, second),
        )
        messages += [tool_result(got), tool_result(more), assistant(f"{said} {also}")]
    return Conversation(messages, [describe(world, tool) for tool in tools])


def no_fitting_tool(world: World) -> Conversation:
    """Ask for something that none of the offered tools does."""
    tools = offer(world, world.number(2, 4))
    if len(tools) == 1:
        return tool_use(world)
    missing = tools.pop()
    text, _ = request(world, missing)
    return Conversation([user(text), assistant(NO_TOOL)], [describe(world, tool) for tool in tools])


def tools_unused(world: World, plain: Conversation) -> Conversation:
    """Offer tools around a conversation that needs none."""
    tools = [
        tool for tool in offer(world, world.number(1, 3)) if tool.key not in ("add", "multiply")
    ]
    return Conversation(plain.messages, [describe(world, tool) for tool in tools], plain.thought)


def sum_beside_tools(world: World) -> Conversation:
    """Ask a sum while unrelated tools are offered."""
    return tools_unused(world, calculation(world))
