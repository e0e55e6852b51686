"""How long a request may become, and which adapters run together."""

import pytest

from hotshoe.errors import RequestError
from hotshoe.scheduler import Request, Scheduler, SchedulerConfig
from hotshoe.scheduler.limits import lacks_place, length_limit
from hotshoe.types import SamplingParams

SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64, "block_size": 4}


def request(num_tokens: int, adapter: str | None = None, **params: int) -> Request:
    return Request("a", [2] * num_tokens, SamplingParams(adapter=adapter, **params))


@pytest.mark.parametrize(("num_tokens", "max_tokens", "limit"), [(10, 5, 15), (60, 20, 64)])
def test_a_request_ends_by_its_own_wish_or_with_the_context(
    num_tokens: int, max_tokens: int, limit: int
) -> None:
    scheduler = Scheduler(SchedulerConfig(num_blocks=64, **SIZES))
    asked = request(num_tokens, max_tokens=max_tokens)
    assert length_limit(asked, scheduler.config, scheduler.cache) == limit


def test_one_that_the_cache_cannot_hold_is_refused() -> None:
    scheduler = Scheduler(SchedulerConfig(num_blocks=8, **SIZES))
    with pytest.raises(RequestError, match="9 KV cache blocks of 4 tokens, but there are 8"):
        length_limit(request(20, max_tokens=14), scheduler.config, scheduler.cache)


def test_an_adapter_waits_while_as_many_others_run_as_may() -> None:
    config = SchedulerConfig(num_blocks=8, max_adapters=1, **SIZES)
    mine, other, plain = request(2, "mine"), request(2, "other"), request(2)
    assert lacks_place(mine, [other, plain], config)
    assert not lacks_place(mine, [mine, plain], config)
    assert not lacks_place(plain, [other], config)


@pytest.mark.parametrize("num_tokens", [0, 64])
def test_a_prompt_that_no_front_end_has_checked_is_refused(num_tokens: int) -> None:
    scheduler = Scheduler(SchedulerConfig(num_blocks=64, **SIZES))
    with pytest.raises(RequestError, match=f"has {num_tokens} tokens, not 1 to 63"):
        length_limit(request(num_tokens), scheduler.config, scheduler.cache)
