"""A request's derived fields."""

import pytest

from hotshoe.scheduler import Request
from hotshoe.types import SamplingParams, TokenLogprobs

EOS = frozenset({1, 2})


def test_the_prompt_is_copied() -> None:
    prompt = [5, 6]
    request = Request("a", prompt, SamplingParams())
    request.token_ids.append(7)
    assert prompt == [5, 6] and request.num_prompt_tokens == 2
    assert request.row is None and not request.finished


def test_requests_are_compared_by_identity() -> None:
    assert Request("a", [1], SamplingParams()) != Request("a", [1], SamplingParams())


def test_stop_tokens_are_the_callers_and_the_models() -> None:
    params = SamplingParams(stop_token_ids=(2, 3))
    assert Request("a", [1], params, eos_token_ids=EOS).stop_token_ids == {1, 2, 3}
    params = SamplingParams(stop_token_ids=(2, 3), ignore_eos=True)
    assert Request("a", [1], params, eos_token_ids=EOS).stop_token_ids == {2, 3}


@pytest.mark.parametrize(("computed", "total"), [(0, 3), (1, 3), (2, 3), (3, 4), (4, 5)])
def test_tokens_that_are_not_yet_known_count(computed: int, total: int) -> None:
    request = Request("a", [7, 8, 9], SamplingParams())
    request.num_computed_tokens = computed
    assert request.num_tokens == total


def test_prompt_logprobs_are_collected_once_per_position() -> None:
    request = Request("a", [7] * 5, SamplingParams(prompt_logprobs=1))
    entries = [TokenLogprobs((i,), (0.0,), 1) for i in range(5)]
    request.add_prompt_logprobs(1, entries[1:3])
    request.add_prompt_logprobs(1, entries[1:2])
    request.add_prompt_logprobs(1, entries[1:4])
    request.add_prompt_logprobs(4, entries[4:])
    assert request.prompt_logprobs == [None, *entries[1:]]
    with pytest.raises(AssertionError):
        request.add_prompt_logprobs(6, entries[:1])


def test_unwanted_prompt_logprobs_are_ignored() -> None:
    request = Request("a", [7] * 3, SamplingParams())
    request.add_prompt_logprobs(1, [TokenLogprobs((1,), (0.0,), 1)])
    assert request.prompt_logprobs is None
