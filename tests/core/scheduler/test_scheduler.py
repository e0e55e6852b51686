"""The scheduler's plans and books, one rule at a time. test_simulation.py mixes them all."""

import gc
import weakref

import pytest

from hotshoe.errors import RequestError
from hotshoe.scheduler import Request, Scheduler, SchedulerConfig
from hotshoe.types import (
    FinishReason,
    Pooling,
    SamplingParams,
    StepPlan,
    StepResult,
    TokenLogprobs,
    TokenOutput,
)

EOS = 1
LONG = SamplingParams(max_tokens=None)


def make_scheduler(**changes: object) -> Scheduler:
    settings: dict[str, object] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        "num_blocks": 64,
        "block_size": 4,
    }
    return Scheduler(SchedulerConfig(**(settings | changes)))  # type: ignore[arg-type]


def add(
    scheduler: Scheduler,
    request_id: str,
    prompt: list[int],
    params: SamplingParams = LONG,
    **fields: object,
) -> Request:
    request = Request(request_id, prompt, params, eos_token_ids=frozenset({EOS}), **fields)  # type: ignore[arg-type]
    scheduler.add(request)
    return request


def finish_step(
    scheduler: Scheduler, plan: StepPlan, tokens: dict[int, int], **more: object
) -> list[TokenOutput]:
    brought = [[token] for token in tokens.values()]
    result = StepResult(plan.step_id, list(tokens), brought, **more)  # type: ignore[arg-type]
    outputs = scheduler.update(plan, result)
    scheduler.check()
    return outputs


def plan_step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    scheduler.check()
    assert plan is not None
    return plan


def work(plan: StepPlan) -> dict[int, int]:
    """Tokens per row of a plan."""
    return dict(zip(plan.rows, plan.num_scheduled_tokens, strict=True))


# Refusals


def test_a_request_that_cannot_be_served_is_refused_with_the_numbers() -> None:
    scheduler = make_scheduler(num_blocks=8)
    message = "20 prompt .* up to 14 generated ones need 9 KV cache blocks of 4 .* there are 8"
    with pytest.raises(RequestError, match=message) as caught:
        add(scheduler, "a", [2] * 20, SamplingParams(max_tokens=14))
    assert caught.value.field == "max_tokens"
    assert not scheduler.has_work()
    # The last token is never computed: 33 tokens fit into 32 places.
    add(scheduler, "a", [2] * 20, SamplingParams(max_tokens=13))
    with pytest.raises(RequestError, match="'a' is in use"):
        add(scheduler, "a", [2])


# Plans


def test_a_long_prompt_is_computed_in_chunks_beside_others() -> None:
    scheduler = make_scheduler()
    add(scheduler, "short", [2, 3])
    add(scheduler, "long", list(range(2, 32)))
    plan = plan_step(scheduler)
    assert work(plan) == {0: 2, 1: 14}
    assert [len(new.block_ids[0]) for new in plan.new_rows] == [1, 4]
    assert plan.new_rows[1].token_ids == list(range(2, 32))
    assert [o.request_id for o in finish_step(scheduler, plan, {0: 7})] == ["short"]
    plan = plan_step(scheduler)
    assert work(plan) == {0: 1, 1: 15}
    assert (plan.block_rows, plan.block_cols) == ([1] * 4, [4, 5, 6, 7])
    finish_step(scheduler, plan, {0: 8})
    plan = plan_step(scheduler)
    assert work(plan) == {0: 1, 1: 1}
    assert plan.new_rows == []
    assert len(finish_step(scheduler, plan, {0: 9, 1: 9})) == 2


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
def test_blocks_are_given_exactly_when_needed(length: int) -> None:
    scheduler = make_scheduler()
    request = add(scheduler, "a", [2] * length)
    for computed in range(length, length + 10):
        plan = plan_step(scheduler)
        assert len(request.tables[0]) == -(-computed // 4)
        assert request.fast_until == 4 * len(request.tables[0])
        finish_step(scheduler, plan, {0: 5})


def test_requests_start_in_order_of_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name, priority in (("a", 3), ("b", 2), ("c", 1)):
        add(scheduler, name, [2, 3], priority=priority)
    plan = plan_step(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    outputs = finish_step(scheduler, plan, {0: 5, 1: 5})
    assert [o.request_id for o in outputs] == ["a", "b"]


def test_requests_start_in_order_of_priority_then_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=3, policy="priority")
    for name, priority in (("a", 3), ("b", 1), ("c", 1), ("d", 2)):
        add(scheduler, name, [2, 3], priority=priority)
    outputs = finish_step(scheduler, plan_step(scheduler), {0: 5, 1: 5, 2: 5})
    assert [o.request_id for o in outputs] == ["b", "c", "d"]


def test_nothing_overtakes_a_request_that_waits_for_room() -> None:
    scheduler = make_scheduler(num_blocks=16, enable_prefix_caching=False)
    add(scheduler, "a", [2] * 15, SamplingParams(max_tokens=4))
    add(scheduler, "big", [2] * 50, SamplingParams(max_tokens=4))
    add(scheduler, "small", [2])
    for _ in range(4):
        plan = plan_step(scheduler)
        assert work(plan).keys() == {0}
        finish_step(scheduler, plan, {0: 5})
    (new,) = plan_step(scheduler).new_rows
    assert len(new.token_ids) == 50


def test_the_lowest_free_row_is_handed_out() -> None:
    scheduler = make_scheduler()
    for name in "abc":
        add(scheduler, name, [2, 3])
    finish_step(scheduler, plan_step(scheduler), {0: EOS, 1: 5, 2: EOS})
    add(scheduler, "d", [2, 3])
    add(scheduler, "e", [2, 3])
    assert [new.row for new in plan_step(scheduler).new_rows] == [0, 2]


def test_plans_share_no_list_with_the_books() -> None:
    scheduler = make_scheduler()
    request = add(scheduler, "a", [2, 3])
    plan = plan_step(scheduler)
    new = plan.new_rows[0]
    assert new.token_ids is not request.token_ids and new.block_ids[0] is not request.tables[0]


def test_an_idle_scheduler_plans_nothing() -> None:
    scheduler = make_scheduler()
    assert scheduler.schedule() is None and not scheduler.has_work()


# Prefix cache


def test_a_block_filled_in_a_step_is_hit_in_the_same_step() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", list(range(2, 11)))
    add(scheduler, "b", list(range(2, 11)))
    plan = plan_step(scheduler)
    assert work(plan) == {0: 9, 1: 1}
    one, two = plan.new_rows
    assert two.num_computed_tokens == 8 and two.block_ids[0][:2] == one.block_ids[0][:2]
    outputs = finish_step(scheduler, plan, {0: 5, 1: 5})
    assert [o.num_cached_tokens for o in outputs] == [0, 8]


@pytest.mark.parametrize("field", ["cache_salt", "tenant"])
def test_salts_and_tenants_separate_requests(field: str) -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    for name, value in (("a", None), ("b", "x"), ("c", ""), ("d", "x")):
        add(scheduler, name, list(range(2, 11)), **{field: value})
    assert [new.num_computed_tokens for new in plan_step(scheduler).new_rows] == [0, 0, 0, 8]


def test_a_salt_is_not_taken_for_a_tenant() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    add(scheduler, "a", list(range(2, 11)), cache_salt="x")
    add(scheduler, "b", list(range(2, 11)), tenant="x")
    assert [new.num_computed_tokens for new in plan_step(scheduler).new_rows] == [0, 0]


def test_requests_are_held_back_until_released() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", [2], SamplingParams(max_tokens=2))
    scheduler.hold()
    held = [add(scheduler, name, [3, 4]) for name in "bcd"]
    for token in (5, 6):
        plan = plan_step(scheduler)
        assert [new.token_ids for new in plan.new_rows] in ([[2]], [])
        finish_step(scheduler, plan, {0: token})
    assert not scheduler.has_work() and scheduler.schedule() is None
    assert (scheduler.num_waiting, scheduler.num_waiting_tokens) == (3, 6)
    assert scheduler.abort("c") and not scheduler.abort("c")
    scheduler.check()
    scheduler.release()
    assert scheduler.has_work() and [request.held for request in held] == [False, True, False]
    assert len(plan_step(scheduler).new_rows) == 2


def test_only_requests_that_came_while_holding_are_held() -> None:
    scheduler = make_scheduler()

    def add_unready(name: str) -> None:
        scheduler.add(Request(name, [3, 4], LONG), ready=False)
        scheduler.check()
        assert not scheduler.has_work()

    add_unready("before")
    scheduler.hold()
    add_unready("while")
    add_unready("still")
    scheduler.make_ready("while")
    assert not scheduler.has_work() and scheduler.num_waiting == 3
    scheduler.make_ready("before")
    plan = plan_step(scheduler)
    assert scheduler.num_running == 1  # unfinished before, so it goes on
    scheduler.release()
    finish_step(scheduler, plan, {0: 5})
    plan_step(scheduler)
    assert scheduler.num_running == 2 and scheduler.num_waiting == 1
    scheduler.make_ready("still")
    scheduler.check()
    assert scheduler.has_work()


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", [2, 3], SamplingParams(max_tokens=7))
    for token in range(10, 17):
        finish_step(scheduler, plan_step(scheduler), {0: token})
    assert not scheduler.has_work()
    add(scheduler, "b", [2, 3, *range(10, 17), 20])
    assert plan_step(scheduler).new_rows[0].num_computed_tokens == 8


def test_prompt_logprobs_need_every_position_computed() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=6)
    params = SamplingParams(max_tokens=None, prompt_logprobs=0)
    prompt = list(range(2, 11))
    add(scheduler, "a", prompt)
    finish_step(scheduler, plan_step(scheduler), {})
    finish_step(scheduler, plan_step(scheduler), {0: EOS})
    add(scheduler, "b", prompt, params)
    entries = [TokenLogprobs((i,), (0.0,), 1) for i in prompt]
    plan = plan_step(scheduler)
    assert plan.new_rows[0].num_computed_tokens == 0
    assert finish_step(scheduler, plan, {}, prompt_logprobs={0: entries[1:7]}) == []
    more = {"prompt_logprobs": {0: entries[7:]}, "logprobs": {0: [entries[0]]}}
    (output,) = finish_step(scheduler, plan_step(scheduler), {0: 5}, **more)
    assert output.prompt_logprobs == [None, *entries[1:]]
    assert output.logprobs == [entries[0]]
    (output,) = finish_step(scheduler, plan_step(scheduler), {0: 5})
    assert output.prompt_logprobs is None and output.logprobs is None


def test_a_prompt_of_one_token_has_no_prompt_logprob_but_says_so() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", [2], SamplingParams(prompt_logprobs=0))
    (output,) = finish_step(scheduler, plan_step(scheduler), {0: 5})
    assert output.prompt_logprobs == [None]


def test_reset_computes_running_requests_anew() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", list(range(2, 11)))
    finish_step(scheduler, plan_step(scheduler), {0: 5})
    scheduler.reset_prefix_cache()
    scheduler.check()
    assert scheduler.stats().cache.num_indexed_blocks == 0
    (new,) = plan_step(scheduler).new_rows
    assert new.num_computed_tokens == 0 and new.token_ids == [*range(2, 11), 5]


# Ends


def run_to_end(params: SamplingParams, tokens: list[int]) -> tuple[list[int], TokenOutput]:
    """Feed tokens to a request with two prompt tokens until it ends."""
    scheduler = make_scheduler(max_model_len=12)
    add(scheduler, "a", [2, 3], params)
    received = []
    for token in tokens:
        (output,) = finish_step(scheduler, plan_step(scheduler), {0: token})
        received += output.token_ids
        if output.finish_reason is not None:
            assert not scheduler.has_work()
            return received, output
    raise AssertionError("the request did not end")


@pytest.mark.parametrize(
    ("params", "tokens", "reason", "stop_token_id"),
    [
        (SamplingParams(max_tokens=3), [5, 6, 7], FinishReason.LENGTH, None),
        (SamplingParams(max_tokens=None), [5] * 10, FinishReason.LENGTH, None),
        (SamplingParams(max_tokens=99), [5] * 10, FinishReason.LENGTH, None),
        (SamplingParams(max_tokens=9), [5, EOS], FinishReason.STOP, None),
        (SamplingParams(max_tokens=9, ignore_eos=True), [EOS] * 9, FinishReason.LENGTH, None),
        (SamplingParams(stop_token_ids=(6, 8)), [5, 6], FinishReason.STOP, 6),
        (SamplingParams(stop_token_ids=(EOS,), ignore_eos=True), [EOS], FinishReason.STOP, EOS),
        (SamplingParams(max_tokens=2), [5, EOS], FinishReason.STOP, None),
        (SamplingParams(min_tokens=2, max_tokens=9), [EOS, EOS, EOS], FinishReason.STOP, None),
        (SamplingParams(min_tokens=2, max_tokens=2), [EOS, EOS], FinishReason.LENGTH, None),
    ],
)
def test_a_request_ends_where_its_parameters_say(
    params: SamplingParams, tokens: list[int], reason: FinishReason, stop_token_id: int | None
) -> None:
    received, output = run_to_end(params, [*tokens, 9, 9])
    assert received == tokens
    assert output.finish_reason is reason and output.stop_token_id == stop_token_id


def test_a_failed_row_ends_its_request_alone_and_taints_its_blocks() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "a", list(range(2, 11)))
    add(scheduler, "b", list(range(30, 39)))
    failed = {0: "logits are not finite"}
    good, bad = finish_step(scheduler, plan_step(scheduler), {1: 5}, failed=failed)
    assert (good.request_id, good.finish_reason, good.error) == ("b", None, None)
    assert (bad.request_id, bad.token_ids) == ("a", [])
    assert (bad.finish_reason, bad.error) == (FinishReason.ERROR, "logits are not finite")
    add(scheduler, "c", list(range(2, 11)))
    assert plan_step(scheduler).new_rows[0].num_computed_tokens == 0


@pytest.mark.parametrize("prompt_length", [4, 5])
def test_a_failed_first_token_delivers_no_prompt_logprobs(prompt_length: int) -> None:
    scheduler = make_scheduler(max_in_flight_steps=2)
    add(scheduler, "a", [2] * prompt_length, SamplingParams(prompt_logprobs=0))
    entries = [TokenLogprobs((2,), (0.0,), 1)] * (prompt_length - 1)
    first, second = plan_step(scheduler), plan_step(scheduler)
    more = {"failed": {0: "bad"}, "prompt_logprobs": {0: entries}}
    (output,) = finish_step(scheduler, first, {}, **more)
    assert output.finish_reason is FinishReason.ERROR and output.prompt_logprobs is None
    assert finish_step(scheduler, second, {0: 5}) == []


def test_abort_is_silent_and_works_once() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    running, waiting = add(scheduler, "a", [2, 3]), add(scheduler, "b", [2, 3])
    plan = plan_step(scheduler)
    for name in "ab":
        assert scheduler.abort(name)
        assert not scheduler.abort(name)
    assert running.finished and waiting.finished
    assert scheduler.has_work()  # The step in flight is still to be booked.
    assert finish_step(scheduler, plan, {0: 5}) == []
    assert not scheduler.has_work() and scheduler.schedule() is None


# Preemption


def fill(scheduler: Scheduler) -> None:
    """Let "a" and "b" decode until one more block is wanted than there is."""
    add(scheduler, "a", [2] * 8)
    add(scheduler, "b", [3] * 8)
    finish_step(scheduler, plan_step(scheduler), {0: 5, 1: 5})
    for _ in range(8):
        finish_step(scheduler, plan_step(scheduler), {0: 5, 1: 5})


def test_the_latest_request_is_preempted_and_finds_its_blocks_again() -> None:
    scheduler = make_scheduler(num_blocks=8, max_model_len=20)
    fill(scheduler)
    plan = plan_step(scheduler)
    assert work(plan) == {0: 1} and scheduler.stats().num_preemptions == 1
    assert scheduler.num_waiting == 1
    for _ in range(3):  # "a" needs three more tokens to reach max_model_len.
        outputs = finish_step(scheduler, plan, {0: 5})
        plan = plan_step(scheduler)
    assert outputs[0].finish_reason is FinishReason.LENGTH
    (new,) = plan.new_rows
    assert new.token_ids == [3] * 8 + [5] * 9
    assert new.num_prompt_tokens == 8
    assert new.num_computed_tokens == 12  # All but the block that "a" took.
    (output,) = finish_step(scheduler, plan, {0: 5})
    assert output.num_cached_tokens == 0  # As reported before; a resumption is not a hit.


def test_a_request_is_let_in_only_if_others_can_go_on() -> None:
    """One block must be left for each running request."""
    for num_blocks, num_new in ((5, 0), (6, 1)):
        scheduler = make_scheduler(num_blocks=num_blocks, max_model_len=20)
        add(scheduler, "a", [2] * 8)
        finish_step(scheduler, plan_step(scheduler), {0: 5})
        add(scheduler, "b", [3] * 8)
        # "a" takes a third block now and may want a fourth one later; "b" needs two.
        assert len(plan_step(scheduler).new_rows) == num_new


def test_a_request_without_room_is_looked_up_again_only_after_a_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = make_scheduler(num_blocks=5, max_model_len=20)
    looked_up = []
    find = scheduler.cache.find_prefix
    monkeypatch.setattr(
        scheduler.cache, "find_prefix", lambda r: looked_up.append(r.request_id) or find(r)
    )
    add(scheduler, "a", [2] * 8, SamplingParams(max_tokens=4))
    add(scheduler, "b", [3] * 13)
    for _ in range(4):
        finish_step(scheduler, plan_step(scheduler), {0: 5})
    assert looked_up == ["a", "b"]
    assert len(plan_step(scheduler).new_rows) == 1
    assert looked_up == ["a", "b", "b"]


def test_a_preemption_lets_a_more_urgent_request_in() -> None:
    scheduler = make_scheduler(num_blocks=5, max_model_len=20, policy="priority")
    add(scheduler, "last", [2] * 8, priority=2)
    finish_step(scheduler, plan_step(scheduler), {0: 5})
    add(scheduler, "first", [3] * 4, priority=0)
    plan = plan_step(scheduler)
    assert len(plan.new_rows) == 1
    add(scheduler, "second", [4] * 5, priority=1)
    while scheduler.stats().num_preemptions == 0:
        assert scheduler.num_running == 2
        finish_step(scheduler, plan, {0: 5, 1: 5})
        plan = plan_step(scheduler)
    # "last" found no further block; what it gave up is enough for "second" in the same step.
    assert [new.token_ids for new in plan.new_rows] == [[4] * 5]


def test_priority_decides_who_is_preempted() -> None:
    scheduler = make_scheduler(num_blocks=8, max_model_len=20, policy="priority")
    add(scheduler, "a", [2] * 8, priority=1)
    add(scheduler, "b", [3] * 8, priority=0)
    for _ in range(9):
        finish_step(scheduler, plan_step(scheduler), {0: 5, 1: 5})
    (output,) = finish_step(scheduler, plan_step(scheduler), {0: 5})
    assert output.request_id == "b"


# Steps in flight


def test_a_step_is_planned_before_the_one_before_it_is_known() -> None:
    scheduler = make_scheduler(max_in_flight_steps=2)
    request = add(scheduler, "a", [2], SamplingParams(max_tokens=3))
    first, second = plan_step(scheduler), plan_step(scheduler)
    assert work(second) == {0: 1} and request.num_tokens == 3
    finish_step(scheduler, first, {0: 5})
    third = plan_step(scheduler)
    finish_step(scheduler, second, {0: 6})
    assert scheduler.schedule() is None  # The third token is the last: none is computed after it.
    (output,) = finish_step(scheduler, third, {0: 7})
    assert output.finish_reason is FinishReason.LENGTH and not scheduler.has_work()


def test_too_many_steps_in_flight_and_wrong_order_are_errors() -> None:
    scheduler = make_scheduler(max_in_flight_steps=2)
    add(scheduler, "a", [2, 3])
    plan_step(scheduler)
    second = plan_step(scheduler)
    with pytest.raises(AssertionError, match="too many"):
        scheduler.schedule()
    with pytest.raises(AssertionError, match="out of order"):
        scheduler.update(second, StepResult(second.step_id, [0], [[5]]))


def test_a_token_after_the_end_is_dropped_though_the_row_has_a_new_owner() -> None:
    scheduler = make_scheduler(max_in_flight_steps=2, max_num_seqs=1)
    add(scheduler, "a", [2, 3])
    add(scheduler, "b", [4, 5])
    first, second = plan_step(scheduler), plan_step(scheduler)
    finish_step(scheduler, first, {0: EOS})
    third = plan_step(scheduler)
    assert third.new_rows[0].token_ids == [4, 5]
    assert finish_step(scheduler, second, {0: 9}) == []
    (output,) = finish_step(scheduler, third, {0: 7})
    assert (output.request_id, output.token_ids) == ("b", [7])


def test_a_token_of_a_preempted_request_counts_and_holds_it_back() -> None:
    scheduler = make_scheduler(max_in_flight_steps=2)
    add(scheduler, "a", [2, 3])
    plan = plan_step(scheduler)
    scheduler.reset_prefix_cache()  # Preempts.
    assert scheduler.schedule() is None
    (output,) = finish_step(scheduler, plan, {0: 5})
    assert output.token_ids == [5]
    assert plan_step(scheduler).new_rows[0].token_ids == [2, 3, 5]


@pytest.mark.parametrize("failed", [False, True])
def test_a_preempted_request_can_end_by_the_token_it_waits_for(failed: bool) -> None:
    scheduler = make_scheduler(max_in_flight_steps=2)
    add(scheduler, "a", list(range(2, 11)))
    plan = plan_step(scheduler)
    scheduler.reset_prefix_cache()
    more = {"failed": {0: "bad"}} if failed else {}
    (output,) = finish_step(scheduler, plan, {} if failed else {0: EOS}, **more)
    assert output.finish_reason is (FinishReason.ERROR if failed else FinishReason.STOP)
    assert scheduler.num_waiting == 0 and not scheduler.has_work()


ONE = SamplingParams(max_tokens=1)


@pytest.mark.parametrize("preempt", [False, True])
def test_a_request_that_pools_ends_with_its_prompt(preempt: bool) -> None:
    scheduler = make_scheduler(max_in_flight_steps=2)
    add(scheduler, "a", [2] * 9, ONE, pooling=Pooling("last"))
    plan = plan_step(scheduler)
    assert plan.new_rows[0].pooling == Pooling("last")
    if preempt:
        scheduler.reset_prefix_cache()
    assert scheduler.schedule() is None  # there is nothing to decode
    [output] = finish_step(scheduler, plan, {}, pooled={0: b"1234"})
    assert (output.pooled, output.token_ids) == (b"1234", [])
    assert output.finish_reason is FinishReason.STOP
    assert not scheduler.has_work()
    assert scheduler.stats().num_generated_tokens == 0


def test_a_prompt_that_pools_may_fill_the_model() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", [2] * 64, ONE, pooling=Pooling("last"))

    for _ in range(4):
        plan = plan_step(scheduler)
        pooled = {0: b"1234"} if plan.step_id == 3 else {}
        outputs = finish_step(scheduler, plan, {}, pooled=pooled)
    assert outputs[0].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("kind", "hit"), [("last", 8), ("mean", 0)])
def test_a_mean_takes_no_prefix_hit(kind: str, hit: int) -> None:
    scheduler = make_scheduler()
    for number in range(2):
        add(scheduler, str(number), [2] * 9, ONE, pooling=Pooling(kind))  # type: ignore[arg-type]
        plan = plan_step(scheduler)
        assert plan.new_rows[0].num_computed_tokens == (hit if number else 0)
        [output] = finish_step(scheduler, plan, {}, pooled={0: b"1234"})
        assert output.num_cached_tokens == (hit if number else 0)


def test_a_generated_block_is_registered_only_with_known_tokens() -> None:
    scheduler = make_scheduler(max_in_flight_steps=2)
    add(scheduler, "a", [2, 3, 4])
    first, second = plan_step(scheduler), plan_step(scheduler)
    # The second step fills the block, but with which token is not known yet.
    assert scheduler.stats().cache.num_indexed_blocks == 0
    finish_step(scheduler, first, {0: 5})
    plan_step(scheduler)
    assert scheduler.stats().cache.num_indexed_blocks == 1
    finish_step(scheduler, second, {0: 6})


# Memory


def test_finished_requests_leave_no_cycle_behind() -> None:
    scheduler = make_scheduler(max_num_seqs=2, max_in_flight_steps=2)
    gc.collect()
    gc.disable()
    try:
        ends = [{0: EOS}, {0: 5}, {}]
        for number, tokens in enumerate(ends):
            request = add(scheduler, f"r{number}", list(range(2, 11)))
            alive = weakref.ref(request)
            plan = plan_step(scheduler)
            if not tokens:
                scheduler.abort(request.request_id)
            finish_step(scheduler, plan, tokens)
            scheduler.abort(request.request_id)
            del request, plan
            assert alive() is None
    finally:
        gc.enable()


def test_statistics() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, "a", [2] * 5)
    add(scheduler, "b", [2] * 5)
    finish_step(scheduler, plan_step(scheduler), {0: 5})
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_preemptions) == (1, 1, 0)
    assert (stats.cache.num_used_blocks, stats.cache.num_queried_tokens) == (2, 5)
    assert (stats.num_waiting_tokens, stats.num_prompt_tokens) == (5, 5)
    assert stats.num_generated_tokens == 1
    scheduler.abort("b")
    finish_step(scheduler, plan_step(scheduler), {0: EOS})
    stats = scheduler.stats()
    assert stats.num_finished == {"abort": 1, "stop": 1}
    assert stats.num_generated_tokens == 2 and stats.num_waiting_tokens == 0


def test_times_are_noted() -> None:
    scheduler = make_scheduler()
    request = add(scheduler, "a", [2])
    assert request.queued_s > 0 and request.scheduled_s == 0
    [output] = finish_step(scheduler, plan_step(scheduler), {0: 5})
    assert output.scheduled_s == request.scheduled_s >= request.queued_s
    assert scheduler.last_wait_s == request.scheduled_s - request.queued_s


# Turns


def test_steps_in_flight_share_the_requests_out() -> None:
    scheduler = make_scheduler(max_in_flight_steps=2, in_turns=True)
    for name in "abcd":
        add(scheduler, name, [5, 6])
    steps = [plan_step(scheduler), plan_step(scheduler)]
    assert [work(step) for step in steps] == [{0: 2, 1: 2}, {2: 2, 3: 2}]
    for token in (7, 8):
        done = steps.pop(0)
        finish_step(scheduler, done, dict.fromkeys(done.rows, token))
        steps.append(plan_step(scheduler))
        assert steps[-1].rows == done.rows
        assert (steps[-1].known_rows, steps[-1].known_tokens) == (done.rows, [token] * 2)


def test_a_prompt_goes_on_in_chunks_before_its_step_has_ended() -> None:
    scheduler = make_scheduler(max_in_flight_steps=3, in_turns=True)
    add(scheduler, "a", list(range(2, 42)))
    assert [work(plan_step(scheduler)) for _ in range(3)] == [{0: 16}, {0: 16}, {0: 8}]


def test_a_request_waits_for_its_token_whatever_else_may_be_in_flight() -> None:
    scheduler = make_scheduler(max_in_flight_steps=3, in_turns=True)
    add(scheduler, "a", [5, 6])
    plan = plan_step(scheduler)
    assert scheduler.schedule() is None
    finish_step(scheduler, plan, {0: 7})
    assert work(plan_step(scheduler)) == {0: 1}


def test_requests_that_find_no_room_take_no_share() -> None:
    """Else the first step would take all that run, and the stages would wait for each other."""
    sizes = {"max_num_seqs": 4, "num_blocks": 8, "max_num_batched_tokens": 64}
    scheduler = make_scheduler(max_in_flight_steps=2, in_turns=True, **sizes)
    for name in "ab":
        add(scheduler, name, [5] * 8, SamplingParams(max_tokens=4))
    for name in "cdefgh":
        add(scheduler, name, [6] * 24, SamplingParams(max_tokens=4))
    first = plan_step(scheduler)
    finish_step(scheduler, first, dict.fromkeys(first.rows, 7))
    assert sorted(first.rows) == [0, 1]
    assert [plan_step(scheduler).rows, plan_step(scheduler).rows] == [[0], [1]]


def pooled(plan: StepPlan) -> dict[int, bytes]:
    return dict.fromkeys(plan.rows, b"v")


def test_without_a_cache_a_step_takes_whole_prompts_in_order() -> None:
    scheduler = make_scheduler(num_blocks=(), max_in_flight_steps=2)
    for name, length in (("a", 9), ("b", 8), ("c", 2), ("d", 16), ("e", 1)):
        add(scheduler, name, [3] * length, SamplingParams(max_tokens=1), pooling=Pooling("cls"))
    first = plan_step(scheduler)
    assert work(first) == {0: 9}
    second = plan_step(scheduler)  # before the first one is known
    assert work(second) == {1: 8, 2: 2}
    assert all(new.block_ids == [] and not new.num_computed_tokens for new in second.new_rows)
    assert len(finish_step(scheduler, first, {}, pooled=pooled(first))) == 1
    third = plan_step(scheduler)
    assert list(work(third).values()) == [16]
    finish_step(scheduler, second, {}, pooled=pooled(second))
    fourth = plan_step(scheduler)
    assert list(work(fourth).values()) == [1]
    finish_step(scheduler, third, {}, pooled=pooled(third))
    finish_step(scheduler, fourth, {}, pooled=pooled(fourth))
    assert not scheduler.has_work() and scheduler.stats().cache.num_hit_tokens == 0


def test_without_a_cache_no_prompt_is_longer_than_a_step() -> None:
    scheduler = make_scheduler(num_blocks=())
    with pytest.raises(RequestError, match="17 tokens, not 1 to 16") as found:
        add(scheduler, "a", [3] * 17, pooling=Pooling("cls"))
    assert found.value.field == "prompt"
