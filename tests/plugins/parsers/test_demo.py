"""The bundled model's calls, from prompt to parsed call."""

import json
from collections.abc import Iterator

import pytest

from hotshoe import LLM, SamplingParams
from hotshoe.text.parsing import ParseContext
from hotshoe.text.response import ParsedResponse, choose_format, collect, open_parser
from hotshoe_demo import heldout

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
PARAMS = SamplingParams(temperature=0, max_tokens=200)


@pytest.fixture(scope="module")
def demo() -> Iterator[LLM]:
    with LLM("demo", platform="cpu", max_num_seqs=16) as llm:
        yield llm


def parse(llm: LLM, text: str, tools, prompt: str = "") -> ParsedResponse:
    """Parse a response in pieces of three characters, in the formats its template tells."""
    templates = llm.tokenizer.chat_templates
    plugins = llm.engine.setup.plugins
    formats = [choose_format(plugins, r, "auto", templates) for r in ("reasoning", "tool")]
    assert [found.name for found in formats if found] == ["qwen3", "hermes"]
    functions = [tool.get("function", tool) for tool in tools]
    schemas = {function["name"]: function["parameters"] for function in functions}
    parser = open_parser(ParseContext(schemas, prompt), *formats)
    events = [e for at in range(0, len(text), 3) for e in parser.feed(text[at : at + 3])]
    return collect([*events, *parser.finish()])


@pytest.mark.parametrize("city", ["Paris", "Tokyo", "Oslo"])
def test_chat_calls_the_tool(demo: LLM, city: str) -> None:
    messages = [{"role": "user", "content": f"Call get_weather with city={city}."}]
    (output,) = demo.chat(messages, PARAMS, [WEATHER])
    seen = parse(demo, output.outputs[0].text, [WEATHER])
    assert (seen.content, seen.reasoning, seen.warnings) == ("", "", [])
    assert [(c.name, json.loads(c.arguments)) for c in seen.calls] == [
        ("get_weather", {"city": city})
    ]


def test_heldout_calls_are_exact(demo: LLM) -> None:
    cases = heldout.cases("tool_call")[:12]
    prompts = [demo.engine.inputs.render_chat(c["messages"], c["tools"]) for c in cases]
    right = 0
    for case, output in zip(cases, demo.generate(prompts, PARAMS), strict=True):
        seen = parse(demo, output.outputs[0].text, case["tools"])
        calls = [{"name": c.name, "arguments": json.loads(c.arguments)} for c in seen.calls]
        right += calls == case["expected"]
    assert right >= len(cases) - 1


def test_a_thought_opened_by_the_prompt_is_reasoning(demo: LLM) -> None:
    case = heldout.cases("long_addition")[0]
    prompt = demo.tokenizer.apply_chat_template(case["messages"], enable_thinking=True)
    (output,) = demo.generate(prompt, PARAMS)
    seen = parse(demo, output.outputs[0].text, [], prompt)
    assert seen.reasoning and "<" not in seen.reasoning
    assert str(case["expected"]) in seen.content
