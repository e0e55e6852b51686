"""Every sampling value is bounded when the parameters are built."""

import math
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.errors import RequestError
from hotshoe.types import GrammarSpec, SamplingParams
from hotshoe.types.sampling_params import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_STRINGS,
)

NAN, INF = math.nan, math.inf

LISTS = ("stop", "bad_words", "stop_token_ids", "allowed_token_ids", "bad_words_token_ids")
BAD = [
    *(("temperature", v) for v in (NAN, INF, -INF, -0.1, 1000.1, 10**400, "1", None, True)),
    *(("top_p", v) for v in (NAN, 0.0, -0.1, 1.0001)),
    *(("min_p", v) for v in (NAN, -0.1, 1.1)),
    *(("presence_penalty", v) for v in (NAN, -2.1, 2.1)),
    *(("frequency_penalty", v) for v in (NAN, -2.1, 2.1)),
    *(("repetition_penalty", v) for v in (NAN, 0.0, -1.0, INF)),
    *(("n", v) for v in (0, -1, MAX_N + 1, 1.0, None, True)),
    *(("top_k", v) for v in (-2, 2**31, 1.5, None)),
    *(("max_tokens", v) for v in (0, -1, 2**31, 1.5)),
    *(("min_tokens", v) for v in (-1, 17, None)),
    *(("seed", v) for v in (-2, MAX_SEED + 1, 1.5)),
    *(("logprobs", v) for v in (-1, 1.5, True)),
    *(("prompt_logprobs", v) for v in (-1, 1.5)),
    *((n, v) for n in LISTS for v in (None, 5, {1: 2}, 1.5)),
    *((n, v) for n in ("ignore_eos", "detokenize") for v in (None, 1, "yes")),
    *(("logit_bias", v) for v in (None, [1], "1")),
    *(("bad_words_token_ids", v) for v in ([5], ["ab"], [[]], [[-1]], [[1.5]])),
    *(("stop", v) for v in ([""], ["x" * 257], [3], ["x"] * (MAX_STOP_STRINGS + 1))),
    *(("bad_words", v) for v in ([""], ["x"] * (MAX_BAD_WORDS + 1))),
    *(("stop_token_ids", v) for v in ([-1], [1.5], [0] * 257)),
    *(("allowed_token_ids", v) for v in ([-1], [True])),
    *(("logit_bias", v) for v in ({-1: 0.0}, {1: NAN}, {1: 101.0}, {1: "x"}, {"a": 1.0})),
    ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.field == name
    assert name in str(caught.value)


GOOD = [
    ("temperature", 0.0),
    ("temperature", 1000),
    ("top_p", 1.0),
    ("min_p", 0.0),
    ("presence_penalty", -2.0),
    ("repetition_penalty", 100.0),
    ("n", MAX_N),
    ("top_k", -1),
    ("max_tokens", None),
    ("max_tokens", 2**31 - 1),
    ("min_tokens", 16),
    ("seed", MAX_SEED),
    ("logprobs", 0),
    ("logit_bias", {0: -100.0, 5: 100}),
    ("allowed_token_ids", (0, 5)),
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_bounds_are_inclusive(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


@given(st.floats(), st.floats(), st.floats())
def test_whatever_is_accepted_is_finite_and_in_range(temperature, top_p, min_p) -> None:
    try:
        params = SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p)
    except RequestError:
        return
    assert math.isfinite(params.temperature)
    assert params.temperature >= 0
    assert 0 < params.top_p <= 1
    assert 0 <= params.min_p <= 1


def test_one_string_is_one_stop_string() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_lists_are_frozen() -> None:
    ids, bias = [1, 2], {1: 0.5}
    params = SamplingParams(stop_token_ids=ids, logit_bias=bias)
    ids.append(3)
    bias[2] = NAN
    assert params.stop_token_ids == (1, 2)
    assert params.logit_bias == {1: 0.5}
    with pytest.raises(FrozenInstanceError):
        params.n = 2


def test_contradictions() -> None:
    with pytest.raises(RequestError, match=r"min_tokens \(5\) exceeds max_tokens \(4\)"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(RequestError, match="stop strings need detokenize"):
        SamplingParams(stop="a", detokenize=False)


def test_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=0.01).greedy


def test_a_grammar_is_a_specification() -> None:
    spec = GrammarSpec.regex("a+")
    assert SamplingParams(grammar=spec).grammar is spec
    with pytest.raises(RequestError, match="must be a GrammarSpec"):
        SamplingParams(grammar="x")


def test_a_seed_of_minus_one_is_none() -> None:
    assert SamplingParams(seed=-1).seed is None


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_the_whole_vocabulary_is_refused_with_the_remedy(name) -> None:
    with pytest.raises(RequestError, match="up to --max-logprobs") as found:
        SamplingParams(**{name: -1})
    assert found.value.field == name
