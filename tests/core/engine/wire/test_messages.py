"""Whatever crosses between processes comes out as it went in; nothing else comes in."""

import dataclasses
import inspect
import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe import errors
from hotshoe.config import ResolvedConfig
from hotshoe.engine.client import DecisionInfo, EngineInfo
from hotshoe.engine.wire import messages
from hotshoe.engine.wire.messages import (
    Abort,
    Add,
    Batch,
    Call,
    Dead,
    Heartbeat,
    Hello,
    Ready,
    Refused,
    Reply,
    Side,
    Start,
    State,
    Welcome,
    WireError,
    check_side,
)
from hotshoe.errors import ConfigError, EngineError, HotshoeError, QueueFullError, RequestError
from hotshoe.platform import Change, DeviceFacts
from hotshoe.types import FinishReason, GrammarSpec, SamplingParams, TokenLogprobs, TokenOutput

TEXT = st.text(string.printable + "äß€😀", max_size=20)
COUNTS = st.integers(0, 2**60)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=30)
FLOATS = st.floats(allow_nan=False, width=64)
SMALL = st.floats(0.01, 1)
PARAMS = st.builds(
    SamplingParams,
    n=st.integers(1, 64),
    temperature=st.floats(0, 1000),
    top_p=SMALL,
    min_p=SMALL,
    presence_penalty=st.floats(-2, 2),
    max_tokens=st.none() | st.integers(100, 2**31 - 1),
    min_tokens=st.integers(0, 100),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=5),
    ignore_eos=st.booleans(),
    seed=st.none() | st.integers(0, 2**63 - 1),
    logprobs=st.none() | st.integers(0, 20),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100), max_size=5),
    bad_words_token_ids=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=3),
    allowed_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=5),
    grammar=st.none() | TEXT.filter(bool).map(GrammarSpec.regex),
)
LOGPROBS = st.builds(
    TokenLogprobs, IDS.map(tuple), st.lists(FLOATS).map(tuple), st.integers(1, 2**31)
)
OUTPUTS = st.builds(
    TokenOutput,
    TEXT,
    IDS,
    st.none() | st.lists(LOGPROBS, max_size=2),
    st.none() | st.lists(st.none() | LOGPROBS, max_size=3),
    st.none() | st.sampled_from(FinishReason),
    st.none() | st.integers(0, 2**31),
    st.none() | TEXT,
    st.integers(0, 2**31),
    FLOATS,
)
ERRORS = st.builds(WireError, st.just("RequestError"), TEXT, st.just({"field": "x"}))
LABELS = st.none() | TEXT
COMMANDS = st.one_of(
    st.just(Hello(Side())),
    st.builds(Add, st.lists(TEXT), IDS, PARAMS, st.integers(-(2**31), 2**31), LABELS, LABELS),
    st.builds(Abort, st.lists(TEXT)),
    st.builds(Call, COUNTS, TEXT, st.dictionaries(TEXT, COUNTS | TEXT)),
)
NEWS = st.one_of(
    st.builds(Batch, st.lists(OUTPUTS, max_size=4), FLOATS),
    st.builds(Refused, TEXT, ERRORS),
    st.builds(Reply, COUNTS, st.none() | st.booleans(), st.none() | ERRORS),
    st.builds(State, st.booleans(), st.booleans(), FLOATS),
    st.builds(Heartbeat, COUNTS, FLOATS),
    st.builds(Dead, ERRORS),
)
INFO = EngineInfo(
    ResolvedConfig(
        hf_overrides={"a": {"b": [1, None]}},
        platform_options={"threads": 2},
        max_model_len=64,
        distributed_executor_backend="uni",
        block_size=16,
        max_num_batched_tokens=128,
        async_scheduling=True,
    ),
    "/models/x",
    100,
    7,
    (1, 2),
    DeviceFacts("p", "d", "n", "a", 1 << 40, 4, frozenset({"f", "g"})),
    (Change("dtype", "bfloat16", "because"),),
    (DecisionInfo("linear", "in_features=1", "native", True, "", {"reference": "score 0"}),),
    {"load": 0.5},
    {"weights": 1 << 40},
    {"threads": 3},
    {"bad": "ImportError: x"},
)


@given(message=COMMANDS)
def test_commands_round_trip(message: object) -> None:
    assert messages.decode_command(messages.encode(message)) == message


@given(message=NEWS)
def test_news_round_trip(message: object) -> None:
    assert messages.decode_news(messages.encode(message)) == message


def test_the_start_round_trips() -> None:
    welcome = Welcome(Side(), INFO)
    assert messages.decode_news(messages.encode(welcome)) == welcome
    start = Start(Side(), dataclasses.asdict(INFO.config), "/s")
    read = messages.decode_start(messages.encode(start))
    assert read == start and ResolvedConfig.from_mapping(read.config) == INFO.config
    for said in (Ready(), Heartbeat(1, 2.0), Dead(WireError("EngineError", "x"))):
        assert messages.decode_from_engine(messages.encode(said)) == said


@given(data=st.binary(max_size=200))
def test_other_bytes_are_refused_as_such(data: bytes) -> None:
    for decode in (messages.decode_command, messages.decode_news, messages.decode_start):
        with pytest.raises(messages.UNREADABLE):
            decode(data)


def test_parameters_out_of_range_are_refused() -> None:
    raw = msgspec.msgpack.decode(messages.encode(Add(["a"], [1], SamplingParams())))
    raw[3]["top_p"] = 7.0
    with pytest.raises(msgspec.ValidationError, match="top_p"):
        messages.decode_command(msgspec.msgpack.encode(raw))


@pytest.mark.parametrize(
    "kind",
    [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, HotshoeError)],
)
def test_errors_come_out_as_what_they_were(kind: type[HotshoeError]) -> None:
    sent = messages.encode(WireError.wrap(kind("why")))
    found = msgspec.msgpack.decode(sent, type=WireError).unwrap()
    assert type(found) is kind and str(found) == "why"
    assert vars(found) == vars(kind("why"))


def test_errors_keep_their_attributes() -> None:
    assert WireError.wrap(RequestError("x", "top_p")).unwrap().field == "top_p"
    assert WireError.wrap(QueueFullError("x", 7.5)).unwrap().retry_after_s == 7.5


def test_foreign_errors_become_the_nearest_of_ours() -> None:
    class OwnError(RequestError):
        pass

    assert type(WireError.wrap(OwnError("x", "f")).unwrap()) is RequestError
    other = WireError.wrap(ZeroDivisionError("x")).unwrap()
    assert type(other) is EngineError and str(other) == "ZeroDivisionError: x"
    noted = RequestError("x")
    noted.add_note("more")
    assert WireError.wrap(noted).unwrap().field is None


def test_only_deliberate_errors_can_be_named() -> None:
    for kind in ("SystemExit", "__builtins__", "HotshoeErrors"):
        with pytest.raises((AssertionError, AttributeError, TypeError)):
            WireError(kind, "x").unwrap()


def test_another_version_is_named() -> None:
    check_side(Side(), Side())
    with pytest.raises(ConfigError, match=r"hotshoe 9\.9 with protocol 77"):
        check_side(Side(), Side("9.9", 77))
