"""A request's derived fields, how long it may become, and which adapters run together."""

import pytest

from hotshoe.errors import RequestError
from hotshoe.scheduler import Request, Scheduler, SchedulerConfig
from hotshoe.scheduler.request import lacks_place, length_limit
from hotshoe.types import SamplingParams, TokenLogprobs

EOS = frozenset({1, 2})
SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64, "block_size": 4}


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


def asking(num_tokens: int, adapter: str | None = None, **params: int) -> Request:
    return Request("a", [2] * num_tokens, SamplingParams(adapter=adapter, **params))


@pytest.mark.parametrize(("num_tokens", "max_tokens", "limit"), [(10, 5, 15), (60, 20, 64)])
def test_a_request_ends_by_its_own_wish_or_with_the_context(
    num_tokens: int, max_tokens: int, limit: int
) -> None:
    scheduler = Scheduler(SchedulerConfig(num_blocks=64, **SIZES))
    asked = asking(num_tokens, max_tokens=max_tokens)
    assert length_limit(asked, scheduler.config, scheduler.cache) == limit


def test_one_that_the_cache_cannot_hold_is_refused() -> None:
    scheduler = Scheduler(SchedulerConfig(num_blocks=8, **SIZES))
    with pytest.raises(RequestError, match="9 KV cache blocks of 4 tokens, but there are 8"):
        length_limit(asking(20, max_tokens=14), scheduler.config, scheduler.cache)


def test_an_adapter_waits_while_as_many_others_run_as_may() -> None:
    config = SchedulerConfig(num_blocks=8, max_adapters=1, **SIZES)
    mine, other, plain = asking(2, "mine"), asking(2, "other"), asking(2)
    assert lacks_place(mine, [other, plain], config)
    assert not lacks_place(mine, [mine, plain], config)
    assert not lacks_place(plain, [other], config)


@pytest.mark.parametrize("num_tokens", [0, 64])
def test_a_prompt_that_no_front_end_has_checked_is_refused(num_tokens: int) -> None:
    scheduler = Scheduler(SchedulerConfig(num_blocks=64, **SIZES))
    with pytest.raises(RequestError, match=f"has {num_tokens} tokens, not 1 to 63"):
        length_limit(asking(num_tokens), scheduler.config, scheduler.cache)
