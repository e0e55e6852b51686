"""Kimi K3: samples, in every two pieces, and names that attributes escape."""

import json

from hotshoe.text.parsing import ParseContext
from hotshoe.text.response import collect
from hotshoe_parsers.kimi_k3 import FORMAT


def test_samples(check_sample, sample) -> None:
    check_sample(FORMAT, sample)


def test_names_are_escaped_in_attributes() -> None:
    name = 'a"&quot;'
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    (tag,) = FORMAT.calls({name: schema}).tags
    assert tag.begin == '<|open|>call tool="a&quot;&amp;quot;" index="'
    number, *parts = tag.content
    written = "".join(part.get("text", f"value{part.get('until')}") for part in parts)
    text = f"<|open|>tools<|sep|>{tag.begin}7{written}<|close|>tools<|sep|>"
    assert number == {"regex": "[0-9]{1,4}"}
    parser = FORMAT.open(ParseContext({name: schema}))
    seen = collect([*parser.feed(text), *parser.finish()])
    assert seen.warnings == []
    (call,) = seen.calls
    assert (call.name, json.loads(call.arguments)) == (name, {name: "value"})
