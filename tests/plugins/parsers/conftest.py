"""Samples of each format, events in canonical form, and texts that provoke parsers."""

import json
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from hotshoe.lazy import resolve_lazy
from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ParseContext,
    ParserFormat,
    ReasoningDelta,
    ToolCallArguments,
)
from hotshoe.text.response import collect
from hotshoe_parsers.plugin import REASONING_FORMATS, TOOL_FORMATS

SAMPLES = Path(__file__).parent / "samples"
TEXT = {"type": "string"}
#: The tools of every request in these tests.
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": TEXT,
            "days": {"type": "integer"},
            "note": {"anyOf": [TEXT, {"type": "null"}]},
            "where": {"type": "object"},
            "flags": {"type": "array"},
            "exact": {"type": "boolean"},
            "scale": {"enum": ["c", "f"]},
        },
    },
    "now": {"type": "object", "properties": {}},
    "math.add": {"type": "object", "properties": {"a": {"type": "number"}}},
}
PIECES = [
    *"{}[]()<>,:;=|\"'\\/#\n\t -.01eu",
    "<|", "|>", "</", "\\u00e9", '\\"', "é", "漢字", "🙂", "\u00a0", "\u2028", "true", "None",
    '{"name": "now", "arguments": {}}', '{"name": "get_weather", "arguments": {"city": "',
    '"name": ', '"arguments": {', '"parameters"', '{"a": [1, {"b": "}]"}]}', "now", "get_weather",
    "[now()]", "now(", "city='a'", "functions.now", " to=", "assistant", "analysis", "final",
    "commentary", "```", "```json\n", "function", "plain words ", "1.5e-3",
]  # fmt: skip

Pieces = Iterable[str]
Run = Callable[..., list[Event]]
Check = Callable[[ParserFormat, dict[str, Any]], list[Event]]


def merge(events: Iterable[Event]) -> list[Event]:
    """Join neighboring deltas of a kind: what remains does not depend on cuts."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, ContentDelta | ReasoningDelta) and type(last) is type(event):
            merged[-1] = replace(event, text=last.text + event.text)
        elif (
            isinstance(event, ToolCallArguments)
            and isinstance(last, ToolCallArguments)
            and last.index == event.index
        ):
            merged[-1] = replace(event, delta=last.delta + event.delta)
        else:
            merged.append(event)
    return merged


def all_formats() -> dict[str, ParserFormat]:
    found = {f"tool:{n}": resolve_lazy(target) for n, target in TOOL_FORMATS.items()}
    return found | {f"reasoning:{n}": resolve_lazy(t) for n, t in REASONING_FORMATS.items()}


@pytest.fixture
def tools() -> dict[str, dict[str, Any]]:
    return TOOLS


@pytest.fixture
def run() -> Run:
    """Parse pieces; every event is whole deltas."""

    def parse(
        found: ParserFormat, pieces: Pieces, prompt: str = "", tools: Any = TOOLS
    ) -> list[Event]:
        parser = found.open(ParseContext(tools, prompt))
        events: list[Event] = []
        for piece in pieces:
            news = parser.feed(piece)
            assert news == merge(news), "deltas of one piece come joined"
            events += news
        return merge([*events, *parser.finish()])

    return parse


@pytest.fixture
def as_expected(run: Run) -> Check:
    """Parse a sample whole and compare."""

    def check(found: ParserFormat, sample: dict[str, Any]) -> list[Event]:
        whole = run(found, [sample["text"]], sample.get("prompt", ""))
        seen = collect(whole)
        assert seen.content == sample.get("content", "")
        assert seen.reasoning == sample.get("reasoning", "")
        calls = [[c.name, c.arguments, *([c.id] if c.id else [])] for c in seen.calls]
        assert calls == sample.get("calls", [])
        assert all(isinstance(json.loads(c.arguments), dict) for c in seen.calls)
        assert len(seen.warnings) == sample.get("warnings", 0), seen.warnings
        assert sum(isinstance(e, MalformedCall) for e in whole) == len(seen.warnings)
        return whole

    return check


@pytest.fixture
def check_sample(run: Run, as_expected: Check) -> Check:
    """Parse a sample whole, in every two pieces, and by characters."""

    def check(found: ParserFormat, sample: dict[str, Any]) -> list[Event]:
        whole = as_expected(found, sample)
        text, prompt = sample["text"], sample.get("prompt", "")
        assert run(found, text, prompt) == whole
        for at in range(1, len(text)):
            assert run(found, [text[:at], text[at:]], prompt) == whole, at
        return whole

    return check


def read_samples(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((SAMPLES / f"{name}.toml").read_text(encoding="utf-8"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `sample` every sample of the module's format, and `any_format` every format."""
    if "sample" in metafunc.fixturenames:
        samples = read_samples(metafunc.module.__name__.rpartition("test_")[2])
        metafunc.parametrize("sample", samples.values(), ids=samples.keys())
    if "any_format" in metafunc.fixturenames:
        formats = all_formats()
        metafunc.parametrize("any_format", formats.values(), ids=formats.keys())


@pytest.fixture
def samples_of() -> Callable[[str], dict[str, dict[str, Any]]]:
    return read_samples


@pytest.fixture(scope="session")
def sample_texts() -> list[str]:
    names = sorted(path.stem for path in SAMPLES.iterdir())
    return [sample["text"] for name in names for sample in read_samples(name).values()]


@pytest.fixture
def hostile_texts(sample_texts: list[str]) -> Callable[[ParserFormat], st.SearchStrategy[str]]:
    """Texts of markers, parts of markers, JSON, Python, Unicode, and pieces of samples."""

    def build(found: ParserFormat) -> st.SearchStrategy[str]:
        markers = st.sampled_from(found.markers)
        part = st.tuples(markers, st.integers(0, 24), st.integers(0, 24)).map(
            lambda t: t[0][min(t[1:]) : max(t[1:])]
        )
        slices = st.tuples(st.sampled_from(sample_texts), st.integers(0, 99), st.integers(1, 99))
        piece = st.one_of(
            markers,
            part,
            st.sampled_from(PIECES),
            slices.map(lambda t: t[0][t[1] : t[1] + t[2]]),
            st.text(max_size=3),
        )
        own = [text for text in sample_texts if any(m in text for m in found.markers)]
        mutated = st.tuples(st.sampled_from(own), st.integers(0, 200), piece).map(
            lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]
        )
        return st.one_of(st.lists(piece, max_size=24).map("".join), mutated)

    return build


@st.composite
def cut(draw: st.DrawFn, text: str) -> Sequence[str]:
    """Return a text in random pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.fixture
def cuts() -> Callable[[str], st.SearchStrategy[Sequence[str]]]:
    return cut
