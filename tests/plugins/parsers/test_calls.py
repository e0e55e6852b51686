"""Forced calls: what a format's grammar writes, its parser reads; templates name their format."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext
from hotshoe.text.response import choose_format, collect, open_parser
from hotshoe_parsers.plugin import TOOL_FORMATS
from hotshoe_parsers.xml_calls import TABLE

ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.none()
    | st.integers()
    | st.text(max_size=8)
    | st.lists(st.dictionaries(st.text(), st.text())),
    max_size=3,
)
CALLS = st.lists(st.tuples(st.integers(0, 5), ARGUMENTS), min_size=1, max_size=4)


def written(grammar: CallGrammar, opening: str, calls: list[tuple[CallTag, Any]]) -> str:
    texts = [
        f"{tag.begin}{json.dumps(arguments, ensure_ascii=False)}{tag.end}"
        for tag, arguments in calls
    ]
    return f"{opening}{(grammar.separator or '').join(texts)}{grammar.closing}"


@settings(max_examples=60, deadline=None)
@given(calls=CALLS)
def test_described_calls_are_read(calls) -> None:
    tools = {"now": {}, "get_weather": {"type": "object"}, "a.b-c_d": {}}
    in_parts = set()
    for name, target in TOOL_FORMATS.items():
        found = resolve_lazy(target)
        grammar = found.calls(tools)
        assert list(dict.fromkeys(t.name for t in grammar.tags)) == list(tools)
        if isinstance(grammar.tags[0].content, list):
            in_parts.add(name)
            continue
        assert all(tag.content is tools[tag.name] for tag in grammar.tags)
        made = [(grammar.tags[i % len(grammar.tags)], arguments) for i, arguments in calls]
        chosen = made[:1] if grammar.separator is None else made
        for opening in grammar.openings:
            text = written(grammar, opening, chosen)
            assert text.startswith(grammar.triggers + grammar.leading)
            parser = found.open(ParseContext(tools))
            seen = collect([*parser.feed(text), *parser.finish()])
            assert seen.warnings == []
            assert seen.content == seen.reasoning == ""
            assert [(c.name, json.loads(c.arguments)) for c in seen.calls] == [
                (tag.name, arguments) for tag, arguments in chosen
            ]
    assert in_parts == {"kimi_k2", "kimi_k3", "minimax_m3", "olmo3", "pythonic"} | {
        tags.name for tags in TABLE
    }


#: What tells a family's templates apart: (template, tool format, reasoning format).
TEMPLATES = {
    "qwen2.5": (r"<tool_call>\n{\"name\": <n>, \"arguments\": <a>}\n</tool_call>", "hermes", None),
    "qwen3": (
        r'<tool_call>\n{\"name\": <n>, \"arguments\": <a>}</tool_call>{{ "</think>" }}',
        "hermes",
        "qwen3",
    ),
    "qwen3-coder": (
        '<tool_call>\n<function=f>\n<parameter=p>\nv\n</parameter>\n</function>\n"name "arguments',
        "qwen3_xml",
        None,
    ),
    "llama3.1": (
        """<|start_header_id|>'{"name": "' + f.name + '", "parameters": '""",
        "llama3_json",
        None,
    ),
    "mistral-7b-v0.3": ('"[TOOL_CALLS] ["', "mistral_array", None),
    "mistral-small-3.2": ("[TOOL_CALLS]n[CALL_ID]i[ARGS]{}", "mistral", None),
    "magistral": ("[TOOL_CALLS]n[ARGS]{} [THINK]", "mistral", "mistral"),
    "deepseek-r1": (
        r"<｜Assistant｜><｜tool▁calls▁begin｜>'\n```json' </think>",
        "deepseek_v3",
        "deepseek_r1",
    ),
    "deepseek-v3.1": (
        "<｜Assistant｜></think><｜tool▁calls▁begin｜>",
        "deepseek_v31",
        "deepseek_r1",
    ),
    "gpt-oss": ("<|start|>assistant<|channel|>analysis<|message|>", "harmony", "harmony"),
    "granite-3.3": ("<|start_of_role|> <|tool_call|> thought process", "granite", "granite"),
    "llama3.2-pythonic": ("[func_name1(params_name1=params_value1)]", "pythonic", None),
    "gemma-4": (
        "'<|tool_call>call:' + name + '{' '}<tool_call|>' '<|channel>thought\\n<channel|>'",
        "gemma4",
        "gemma4",
    ),
    "glm-4.5": (
        '<tool_call>{{ f }}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value> "name',
        "glm45",
        None,
    ),
    "hunyuan-a13b": ("<|extra_0|> <tool_calls>[</tool_calls>", "hunyuan_a13b", None),
    "internlm2.5": ("<|action_start|><|plugin|>", "internlm", None),
    "jamba": ("<|bom|><tool_calls>[", "jamba", None),
    "kimi-k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>i<|tool_call_argument_begin|>",
        "kimi_k2",
        None,
    ),
    "kimi-k3": (
        '<|open|>tools<|sep|> <|open|>call tool="f" index="1"<|sep|> <|close|>call<|sep|>',
        "kimi_k3",
        "kimi_k3",
    ),
    "gigachat3": ("assistant<|role_sep|>\\n<|message_sep|> function call", "gigachat3", None),
    "granite-20b-fc": ("'<function_call> ' + call", "granite_20b_fc", None),
    "solar-open": (
        "<|think|> <|end|> <|content|> <|tool_calls|><|tool_call:begin|>i<|tool_call:args|>",
        "solar_open",
        "solar_open",
    ),
    "solar-open-2": (
        "<|think:start|> <|think:end|> <|tool_call:start|> <|tool_arg:start|>",
        "solar_open2",
        "solar_open2",
    ),
    "apertus": (
        "<|tools_prefix|> <|tools_suffix|> <|inner_prefix|> <|inner_suffix|>",
        "apertus",
        "apertus",
    ),
    "command-a-reasoning": (
        "<|START_THINKING|> <|END_THINKING|><|START_ACTION|>[ ]<|END_ACTION|>",
        "cohere_command3",
        "cohere_command3",
    ),
    "functiongemma": (
        "'<start_function_call>call:' + name + '{' '}<end_function_call>'",
        "functiongemma",
        None,
    ),
    "longcat": ("<longcat_tool_call> </longcat_tool_call>", "longcat", None),
    "deepseek-v3.2": ('<｜DSML｜function_calls> <｜DSML｜invoke name="f">', "deepseek_v32", None),
    "deepseek-v4": ('<｜DSML｜tool_calls> <｜DSML｜invoke name="f">', "deepseek_v4", None),
    "minimax-m2": ("'<minimax:tool_call>' <invoke name= </invoke>", "minimax_m2", None),
    "minimax-m3": (
        "']<]minimax[>[' ns_token ~ '<tool_call>' '<invoke name=\"' <mm:think> </mm:think>",
        "minimax_m3",
        "minimax_m3",
    ),
    "olmo3": ("<function_calls> </function_calls>", "olmo3", None),
    "seed-oss": (
        "<seed:tool_call><function=f><parameter=p>v</parameter></function>",
        "seed_oss",
        None,
    ),
    "step3": ("<｜tool_calls_begin｜> <steptml:invoke name=", "step3", None),
    "chatml": ("<|im_start|>", None, None),
}


@pytest.mark.parametrize(
    ("template", "tool", "reasoning"), TEMPLATES.values(), ids=TEMPLATES.keys()
)
def test_templates_tell_formats(template: str, tool: str | None, reasoning: str | None) -> None:
    plugins = PluginManager()
    for role, name in (("tool", tool), ("reasoning", reasoning)):
        found = choose_format(plugins, role, "auto", {"default": template})
        assert (found.name if found else None) == name


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
def test_reasoning_then_calls(pieces: int, tools) -> None:
    text = (
        '<think>\nShall I <tool_call>{"name": "now", "arguments": {}}</tool_call>?\n</think>\n\n'
        'I do.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    )
    plugins = PluginManager()
    reasoning = choose_format(plugins, "reasoning", "qwen3", {})
    tool = choose_format(plugins, "tool", "hermes", {})
    parser = open_parser(ParseContext(tools), reasoning, tool)
    events = [e for at in range(0, len(text), pieces) for e in parser.feed(text[at : at + pieces])]
    seen = collect([*events, *parser.finish()])
    assert seen.reasoning.startswith("Shall I <tool_call>") and seen.reasoning.endswith("?")
    assert seen.content == "I do."
    assert [(c.name, c.arguments) for c in seen.calls] == [("now", "{}")]
    assert seen.warnings == []
