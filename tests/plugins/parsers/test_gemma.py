"""Gemma 4: samples, in every two pieces, and values as the template writes them."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.text.parsing import ParseContext
from hotshoe.text.response import collect
from hotshoe_parsers.gemma import FORMAT, FORMATS

NAMES = st.text("abcxyz_09 é-.", min_size=1, max_size=5).filter(lambda name: name == name.strip())
#: Text with everything but the mark that ends it.
TEXTS = st.text(max_size=12) | st.sampled_from(['<|"', '"|>', "{a:1}", "<tool_call|>", '\\"', "\n"])
LEAVES = st.none() | st.booleans() | st.integers() | st.sampled_from([0.5, -1.25e-3]) | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def written(value: Any) -> str:
    """Write a value as the chat template does."""
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f"{name}:{written(v)}" for name, v in value.items()) + "}"
        case list():
            return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


def test_samples(check_sample, sample) -> None:
    check_sample(FORMATS[sample.get("format", "gemma4")], sample)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3))
def test_values_come_back(calls: list[dict[str, Any]]) -> None:
    text = "".join(f"<|tool_call>call:now{written(call)}<tool_call|>" for call in calls)
    parser = FORMAT.open(ParseContext({"now": {}}))
    seen = collect([*parser.feed(text), *parser.finish()])
    assert seen.warnings == [] and seen.content == ""
    assert [json.loads(call.arguments) for call in seen.calls] == calls


def test_nesting_has_an_end() -> None:
    for opening in ("[", "{a:"):
        text = "<|tool_call>call:now{a:" + opening * 100_000
        parser = FORMAT.open(ParseContext({"now": {}}))
        seen = collect([*parser.feed(text), *parser.finish()])
        assert len(seen.warnings) == 1 and seen.calls == []
