"""Whatever a peer sends or a client writes, a parser takes it or refuses it in words, and soon."""

import base64
import contextlib
import json
import struct
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.mutations import changed_bytes, changed_json

from hotshoe.engine.ranks import agent_messages, rank_messages
from hotshoe.engine.wire import messages
from hotshoe.engine.wire.messages import UNREADABLE
from hotshoe.errors import RequestError
from hotshoe.grammar.backend import Vocabulary
from hotshoe.types import GrammarSpec, SamplingParams, StepResult
from hotshoe_bench.sse import read_stream
from hotshoe_server.embeds import read_embeds
from hotshoe_structured_output.gbnf import is_lark, to_lark
from hotshoe_structured_output.llguidance_backend import LLGuidance, LLGuidanceCompiler

SOON_S = 10.0
DECODERS = (
    messages.decode_command,
    messages.decode_news,
    messages.decode_start,
    messages.decode_from_engine,
    agent_messages.decode_to,
    agent_messages.decode_from,
    rank_messages.decode_join,
    rank_messages.decode_command,
    rank_messages.decode_news,
)
FRAMES = [
    messages.encode(messages.Heartbeat(3, 0.5)),
    messages.encode(messages.Unwanted(["a", "b"])),
    messages.encode(messages.Ready()),
    messages.encode(messages.Resting(1)),
    messages.encode(messages.Start(messages.Side(), {"model": "demo"}, "/tmp/s", 1, 2)),
    messages.encode(
        messages.Add(["a"], [1, 2], SamplingParams(stop=["x"], logit_bias={5: 1.0}), cache_salt="s")
    ),
    agent_messages.encode(agent_messages.Begin(4, 2, "/tmp/a", [b"one", b"two"])),
    agent_messages.encode(agent_messages.Gone(1, "killed")),
    rank_messages.encode(rank_messages.Allocate([7, 8])),
    rank_messages.encode(rank_messages.ChangeWeights("update", "/new")),
    rank_messages.encode(rank_messages.Done(StepResult(1, [0], [[5]]))),
    messages.encode(messages.Dead(messages.WireError.wrap(RequestError("no", "prompt")))),
]
HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }\n"
ARRAY = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(HEADER)) + HEADER + bytes(24)
GBNF = r"""root ::= object # all of it
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= "\"" [^"\\\x00-\x1f]{1,8} "\"" ":" ws [0-9]+
ws ::= [ \t\n]*"""
PIECES = ["::=", "(", ")*", "{1,", "{99999}", '"', "[", "]", "\\u", "\\x4", "|", "root", "\n", "\0"]
SCHEMA: dict[str, Any] = {
    "oneOf": [
        {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"enum": [2, "x"]}}, "required": ["a"]},
        {"$ref": "#/$defs/list"},
    ],
    "$defs": {"list": {"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 3}},
}
TAG: dict[str, Any] = {
    "structures": [
        {"begin": "<call>", "schema": {"type": "object"}, "end": "</call>"},
        {
            "begin": "<b>",
            "parts": [{"regex": "[a-z]+"}, {"text": ";"}, {"until": "</b>"}],
            "end": "",
        },
        {"begin": "<c>", "parts": [{"text": "x"}, {"either": [[{"text": "y"}], []]}], "end": "z"},
    ],
    "triggers": ["<call>", "<b>", "<c>"],
    "closing": "!",
}
PATTERN = r"(?i:a|b){1,3}[^\"\]-]*\d+(?P<n>\p{L}|\s)?[\w-]$"
PATTERN_PIECES = [
    "(",
    ")",
    "[",
    "]",
    "[^",
    "{9999}",
    "*",
    "+?",
    "\\",
    "\\p{",
    "&&",
    "--",
    "|",
    "(?=",
]
LARK = 'start: "a" NAME list*\nNAME: /[a-z]{1,8}/\nlist: "[" (start ("," start)*)? "]"\n'
LARK_PIECES = ["start:", "/", '"', "(", ")*", "%ignore", "%json {", "{9999}", "->", "|", "~", "\n"]
EVENT = {
    "choices": [{"text": "a", "delta": {"content": "b"}, "finish_reason": None}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


def soon(read: Callable[..., object], *arguments: object, refused: tuple[Any, ...] = ()) -> None:
    """Call a parser, which may refuse by the given exceptions, but must be done soon."""
    begin = time.thread_time()
    with contextlib.suppress(*refused):
        read(*arguments)
    assert time.thread_time() - begin < SOON_S


@pytest.mark.parametrize("frame", FRAMES)
def test_the_seeds_are_messages(frame: bytes) -> None:
    taken = 0
    for decode in DECODERS:
        with contextlib.suppress(*UNREADABLE):
            taken += decode(frame) is not None
    assert taken


@given(st.sampled_from(FRAMES).flatmap(changed_bytes) | st.binary(max_size=64))
def test_messages_between_processes(frame: bytes) -> None:
    for decode in DECODERS:
        soon(decode, frame, refused=UNREADABLE)


@given(changed_json([["Submit", 1, {"a": [None, "b"]}], ["Welcome", 2], ["Start", {}, {}, "x"]]))
def test_messages_of_other_forms(value: Any) -> None:
    with contextlib.suppress(TypeError, OverflowError, UnicodeEncodeError):
        frame = msgspec.msgpack.encode(value)
        for decode in DECODERS:
            soon(decode, frame, refused=UNREADABLE)


def read_array(data: bytes) -> None:
    rows = read_embeds(base64.b64encode(data).decode())
    assert rows.ndim == 2 and rows.nbytes < len(data) and rows.dtype.kind == "f"


def test_the_seed_is_an_array() -> None:
    read_array(ARRAY)


@given(changed_bytes(ARRAY))
def test_arrays(data: bytes) -> None:
    soon(read_array, data, refused=(RequestError,))


@st.composite
def cut(draw: st.DrawFn, seed: str, pieces: list[str]) -> str:
    """Cut parts out of a text and put others in."""
    text = seed
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = min(begin + draw(st.integers(0, 12)), len(text))
        text = text[:begin] + draw(st.sampled_from(pieces) | st.text(max_size=4)) + text[end:]
    return text


def test_the_seed_is_a_grammar() -> None:
    assert to_lark(GBNF).startswith("start: ")
    assert LLGuidance().refusal(GrammarSpec.json_schema(json.dumps(SCHEMA))) is None


@given(cut(GBNF, PIECES))
def test_grammars(text: str) -> None:
    soon(is_lark, text)
    soon(to_lark, text, refused=(RequestError,))


@cache
def compiler() -> LLGuidanceCompiler:
    letters = tuple(bytes([byte]) for byte in range(256))
    return LLGuidance().open(Vocabulary((*letters, b""), {}, (256,)))


def compiled(spec: GrammarSpec) -> None:
    if LLGuidance().refusal(spec) is None:
        compiler().compile(spec)


def test_the_seeds_are_compiled() -> None:
    for spec in (
        GrammarSpec.structural_tag(TAG),
        GrammarSpec.regex(PATTERN),
        GrammarSpec.ebnf(LARK),
    ):
        compiled(spec)


@given(changed_json(TAG))
def test_structural_tags(tag: Any) -> None:
    with contextlib.suppress(RequestError):
        soon(compiled, GrammarSpec.structural_tag(tag))


@given(cut(PATTERN, PATTERN_PIECES))
def test_patterns(pattern: str) -> None:
    with contextlib.suppress(RequestError):
        soon(compiled, GrammarSpec.regex(pattern))


@given(cut(LARK, LARK_PIECES))
def test_grammars_of_the_library(text: str) -> None:
    with contextlib.suppress(RequestError):
        soon(compiled, GrammarSpec.ebnf(text))


@given(changed_json(SCHEMA))
def test_schemas(schema: Any) -> None:
    with contextlib.suppress(RequestError):
        soon(LLGuidance().refusal, GrammarSpec.json_schema(json.dumps(schema)))


@given(
    changed_bytes(b"data: " + json.dumps(EVENT).encode() + b"\n\ndata: [DONE]\n\n"),
    st.integers(1, 9),
)
def test_streams_of_events(body: bytes, size: int) -> None:
    pieces = [(float(i), body[i : i + size]) for i in range(0, len(body), size)]
    soon(read_stream, pieces)
    assert read_stream(pieces).done == read_stream([(0.0, body)]).done
