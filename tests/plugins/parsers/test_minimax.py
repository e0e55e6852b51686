"""MiniMax M3: samples, in every two pieces, values as the template writes them, deep nesting."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.text.parsing import ParseContext
from hotshoe.text.response import collect
from hotshoe_parsers.minimax import FORMAT, MARK

NAMES = st.text("abcxyz_09-", min_size=1, max_size=5).filter(lambda name: name != "item")
LEAVES = st.booleans() | st.integers() | st.sampled_from([0.5, -1.25e-3, "a", "b c", "é"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


def tagged(name: str, value: Any) -> str:
    """Write a value as the chat template does."""
    match value:
        case dict():
            within = "".join(tagged(key, inner) for key, inner in value.items())
        case list():
            within = "".join(tagged("item", inner) for inner in value)
        case str():
            within = value
        case _:
            within = json.dumps(value)
    return f"{MARK}<{name}>{within}{MARK}</{name}>"


def test_samples(check_sample, sample) -> None:
    check_sample(FORMAT, sample)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3))
def test_values_come_back(calls: list[dict[str, Any]]) -> None:
    schema = {"type": "object", "properties": None}  # any value may be anything
    each = [
        f'{MARK}<invoke name="now">{"".join(map(tagged, call, call.values()))}{MARK}</invoke>\n'
        for call in calls
    ]
    text = f"{MARK}<tool_call>\n{''.join(each)}{MARK}</tool_call>"
    parser = FORMAT.open(ParseContext({"now": schema}))
    seen = collect([*parser.feed(text), *parser.finish()])
    assert seen.warnings == [] and seen.content == ""
    assert [json.loads(call.arguments) for call in seen.calls] == calls


def test_nesting_has_an_end() -> None:
    text = f'{MARK}<tool_call>{MARK}<invoke name="now">' + f"{MARK}<a>" * 50_000
    parser = FORMAT.open(ParseContext({"now": {}}))
    seen = collect([*parser.feed(text), *parser.finish()])
    assert len(seen.warnings) == 1 and seen.calls == []
