"""A recorded stream reads the same however it was cut, and says what went wrong in it."""

import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe_bench.sse import Stream, read_stream


def event(**value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def token(text: str, reason: str | None = None) -> bytes:
    return event(choices=[{"text": text, "finish_reason": reason}])


def delta(**value: object) -> bytes:
    return event(choices=[{"delta": value, "finish_reason": None}])


BODY = (
    token("é")
    + b": a comment\n\n"
    + token("")
    + token("b", "length")
    + event(choices=[], usage={"prompt_tokens": 4, "completion_tokens": 3})
    + b"data: [DONE]\n\n"
)


def check_body(stream: Stream) -> None:
    assert len(stream.token_times_s) == 3
    assert stream.finish_reason == "length"
    assert (stream.num_prompt_tokens, stream.num_output_tokens) == (4, 3)
    assert stream.done and stream.error is None


@given(st.lists(st.integers(0, len(BODY)), max_size=12))
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(BODY)]
    pieces = [(float(i), BODY[a:b]) for i, (a, b) in enumerate(itertools.pairwise(edges))]
    stream = read_stream(pieces)
    check_body(stream)
    # An event's moment is that of the piece with its last byte.
    ends = [BODY.index(b"\n\n", BODY.index(mark)) for mark in (b"00e9", b'""', b'"b"')]
    expected = [
        next(t for t, end in zip(range(99), edges[1:], strict=False) if end > e) for e in ends
    ]
    assert stream.token_times_s == [float(t) for t in expected]


def test_line_ends_of_the_other_kind() -> None:
    check_body(read_stream([(0.0, BODY.replace(b"\n", b"\r\n"))]))


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant"}, False),
        ({"content": "a"}, True),
        ({"reasoning_content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
    ],
)
def test_what_counts_as_a_token_in_a_chat(value: dict, counts: bool) -> None:
    assert len(read_stream([(1.0, delta(**value))]).token_times_s) == counts


def test_an_ending_without_text_is_no_token() -> None:
    stream = read_stream([(1.0, token("a")), (2.0, token("", "stop"))])
    assert stream.token_times_s == [1.0]
    assert stream.end_s == 2.0


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (event(error={"message": "out of order", "code": 500}), "out of order"),
        (event(error="plain"), "plain"),
        (b"data: {oops\n\n", "not a completion event"),
        (b'data: {"choices": 5}\n\n', "not a completion event"),
    ],
)
def test_errors(body: bytes, error: str) -> None:
    stream = read_stream([(0.0, token("a") + body + token("b"))])
    assert error in stream.error
    assert len(stream.token_times_s) == 1


def test_an_empty_body() -> None:
    assert read_stream([]) == Stream()


def test_an_event_in_many_pieces_is_put_together_once() -> None:
    text = "x" * 6_400_000
    body = token(text)
    pieces = [(0.0, body[i : i + 32]) for i in range(0, len(body), 32)]
    begin = time.process_time()  # which a machine that pauses does not count
    assert len(read_stream(pieces).token_times_s) == 1
    assert time.process_time() - begin < 20  # a copy of the rest for every piece takes minutes
