"""Templates of models that have none: examples as their publishers describe conversations."""

import json
from typing import Any

import pytest

from hotshoe.errors import RequestError
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.text.chat_template import render, template_message
from hotshoe.text.parsing import ParseContext
from hotshoe.text.response import choose_format, collect, open_parser
from hotshoe_parsers.plugin import CHAT_TEMPLATES

BEGIN, END, USER, ANSWER = (
    f"<｜{name}｜>" for name in ("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant")
)
NOW = {"name": "now", "description": 'Tell "the" tîme', "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": NOW}, {"type": "function", "function": {"name": "f"}}]
VERSIONS = ["V32", "V4"]


def call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLED = {
    "role": "assistant",
    "reasoning_content": "Let me see.",
    "tool_calls": [
        call("a", "now", "{}"),
        call("b", "f", '{"x": "<1>", "y": [1, null], "z": "é"}'),
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "b", "content": "second"},
    {"role": "tool", "tool_call_id": "a", "content": "first"},
]
EARLIER = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi", "reasoning_content": "A greeting."},
    {"role": "user", "content": "2 + 2?"},
]


def shown(version: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    template = resolve_lazy(CHAT_TEMPLATES[f"Deepseek{version}ForCausalLM"])
    found = [template_message(message) for message in messages]
    known = {"messages": found, "tools": None, "add_generation_prompt": True}
    return render(template, known | variables)


def calls(block: str) -> str:
    return f"""

<｜DSML｜{block}>
<｜DSML｜invoke name="now">

</｜DSML｜invoke>
<｜DSML｜invoke name="f">
<｜DSML｜parameter name="x" string="true"><1></｜DSML｜parameter>
<｜DSML｜parameter name="y" string="false">[1, null]</｜DSML｜parameter>
<｜DSML｜parameter name="z" string="true">é</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜{block}>{END}"""


@pytest.mark.parametrize("version", VERSIONS)
def test_thoughts_of_earlier_turns_are_left_out(version: str) -> None:
    before = f"{BEGIN}Be brief.{USER}Hello{ANSWER}</think>Hi{END}{USER}2 + 2?{ANSWER}"
    assert shown(version, EARLIER) == before + "</think>"
    assert shown(version, EARLIER, add_generation_prompt=False) == before.removesuffix(ANSWER)
    assert shown(version, EARLIER, thinking=True) == before + "<think>"
    last = {"role": "assistant", "content": "4", "reasoning_content": "Easy."}
    assert shown(version, [*EARLIER, last]) == f"{before}</think>4{END}"
    assert shown(version, [*EARLIER, last], thinking=True) == f"{before}<think>Easy.</think>4{END}"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("variables", "thinks"),
    [
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False, "reasoning_effort": "high"}, False),
        ({"thinking": False, "enable_thinking": True}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": None}, False),
    ],
    ids=str,
)
def test_who_turns_thinking_on(version: str, variables: dict[str, Any], thinks: bool) -> None:
    end = "<think>" if thinks else "</think>"
    assert shown(version, EARLIER[:2], **variables).endswith(f"{USER}Hello{ANSWER}{end}")


def test_results_of_v4_are_what_a_user_says_in_the_order_of_calls() -> None:
    messages = [EARLIER[1], CALLED, *RESULTS, {"role": "user", "content": "And?"}]
    said = "<tool_result>first</tool_result>\n\n<tool_result>second</tool_result>\n\nAnd?"
    made = f"{BEGIN}{USER}Hello{ANSWER}</think>{calls('tool_calls')}{USER}{said}{ANSWER}</think>"
    assert shown("V4", messages) == made
    # Where tools are offered, no thought is left out.
    thought = shown("V4", messages, tools=TOOLS, thinking=True)
    assert f"{ANSWER}<think>Let me see.</think>{calls('tool_calls')}{USER}{said}" in thought
    assert thought.endswith(f"{ANSWER}<think>")


def test_results_of_v32_follow_the_calls() -> None:
    said = "\n\n<function_results>\n<result>second</result>\n<result>first</result>\n"
    made = f"{BEGIN}{USER}Hello{ANSWER}<think>Let me see.</think>{calls('function_calls')}{said}"
    found = shown("V32", [EARLIER[1], CALLED, *RESULTS], thinking=True)
    assert found == f"{made}</function_results>\n\n<think>"


@pytest.mark.parametrize("version", VERSIONS)
def test_tools_stand_behind_the_system_message(version: str) -> None:
    found = shown(version, EARLIER[:2], tools=TOOLS)
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in TOOLS)
    assert found.startswith(f"{BEGIN}Be brief.\n\n## Tools\n") and f"\n{listed}\n" in found
    assert found.endswith(f"\n{USER}Hello{ANSWER}</think>")
    without = shown(version, EARLIER[1:2], tools=TOOLS)
    assert without == found.replace("Be brief.", "")
    inside = shown(version, [{**EARLIER[0], "tools": TOOLS}, EARLIER[1]])
    assert inside == found


def test_the_highest_effort_of_v4_is_asked_for_in_front() -> None:
    found = shown("V4", EARLIER[:2], reasoning_effort="max")
    assert found.startswith(f"{BEGIN}Reasoning Effort: Absolute maximum")
    assert found.endswith(f"\n\nBe brief.{USER}Hello{ANSWER}<think>")
    assert "Effort" not in shown("V4", EARLIER[:2], reasoning_effort="max", thinking=False)


def test_a_reminder_stands_between_messages_of_v4() -> None:
    reminder = {"role": "latest_reminder", "content": "Monday"}
    found = shown("V4", [EARLIER[0], reminder, EARLIER[1]])
    assert found == f"{BEGIN}Be brief.<｜latest_reminder｜>Monday{USER}Hello{ANSWER}</think>"


@pytest.mark.parametrize("version", VERSIONS)
def test_other_roles_are_refused(version: str) -> None:
    with pytest.raises(RequestError, match="there is no role critic"):
        shown(version, [{"role": "critic", "content": "No."}])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_template_writes_its_formats_read(version: str) -> None:
    text = shown(version, [EARLIER[1], CALLED], thinking=True)
    prompt, _, answer = text.partition("<think>")
    plugins = PluginManager()
    source = {"default": resolve_lazy(CHAT_TEMPLATES[f"Deepseek{version}ForCausalLM"])}
    tool = choose_format(plugins, "tool", "auto", source)
    reasoning = choose_format(plugins, "reasoning", "auto", source)
    assert tool is not None and reasoning is not None
    assert (tool.name, reasoning.name) == (f"deepseek_{version.lower()}", "deepseek_r1")
    schemas = {"now": {}, "f": {"properties": {"y": {"type": "array"}}}}
    context = ParseContext(schemas, prompt=f"{prompt}<think>")
    parser = open_parser(context, reasoning, tool)
    seen = collect([*parser.feed(answer.removesuffix(END)), *parser.finish()])
    assert (seen.reasoning, seen.content, seen.warnings) == ("Let me see.", "", [])
    assert [(c.name, json.loads(c.arguments)) for c in seen.calls] == [
        ("now", {}),
        ("f", {"x": "<1>", "y": [1, None], "z": "é"}),
    ]
