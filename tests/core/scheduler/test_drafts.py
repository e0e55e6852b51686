"""Counts of drafts, and their rules in plans one at a time; test_simulation.py mixes them all."""

from hotshoe.scheduler import DraftCounts, Request, Scheduler, SchedulerConfig
from hotshoe.types import FinishReason, SamplingParams, StepPlan, StepResult, TokenOutput

EOS = 1


def make(**changes: int) -> Scheduler:
    sizes = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        "num_blocks": 64,
        "block_size": 4,
    }
    return Scheduler(SchedulerConfig(**(sizes | changes)))


def add(scheduler: Scheduler, name: str, prompt: list[int], **params: object) -> Request:
    settings = SamplingParams(**({"max_tokens": None} | params))  # type: ignore[arg-type]
    request = Request(name, prompt, settings, eos_token_ids=frozenset({EOS}))
    scheduler.add(request)
    return request


def plan_of(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    scheduler.check()
    assert plan is not None
    return plan


def finish(scheduler: Scheduler, plan: StepPlan, *tokens: list[int]) -> list[TokenOutput]:
    outputs = scheduler.update(plan, StepResult(plan.step_id, list(plan.rows), list(tokens)))
    scheduler.check()
    return outputs


def test_counts_tell_accepted_drafts_by_their_place() -> None:
    counts = DraftCounts()
    plan = StepPlan(0, draft_rows=[2, 0, 3], drafts=[[5, 6], [7], [8, 8, 8]])
    counts.add(plan, StepResult(0, [1, 2, 0], [[4], [5, 6, 9], [3]], failed={3: "bad"}))
    assert (counts.num_drafts, counts.num_draft_tokens) == (3, 6)
    assert (counts.num_accepted_at, counts.num_accepted_tokens) == ((1, 1, 0), 2)


def test_accepted_drafts_are_told_to_the_worker_with_the_next_step() -> None:
    scheduler = make()
    request = add(scheduler, "a", [2, 3, 4])
    finish(scheduler, plan_of(scheduler), [5])
    request.propose([6, 7, 8])
    plan = plan_of(scheduler)
    assert (plan.num_scheduled_tokens, plan.draft_rows, plan.drafts) == ([4], [0], [[6, 7, 8]])
    assert plan.accepted_rows == [] and len(request.tables[0]) == 2
    [output] = finish(scheduler, plan, [6, 7, 9])
    assert output.token_ids == [6, 7, 9]
    assert request.num_computed_tokens == len(request.token_ids) - 1 == 6
    request.propose([])
    plan = plan_of(scheduler)
    assert (plan.num_scheduled_tokens, plan.accepted_rows, plan.num_accepted) == ([1], [0], [2])
    assert plan.draft_rows == []
    finish(scheduler, plan, [5])
    assert plan_of(scheduler).accepted_rows == []


def test_a_request_with_drafts_waits_for_its_tokens_and_others_for_its_step() -> None:
    scheduler = make(max_in_flight_steps=2)
    drafting = add(scheduler, "a", [2])
    add(scheduler, "b", [3])
    plan = plan_of(scheduler)
    second = plan_of(scheduler)
    assert second.rows == [0, 1]
    finish(scheduler, plan, [5], [5])
    drafting.propose([6])  # It is under way already, so that the next step must wait for it.
    third = plan_of(scheduler)
    assert third.rows == [1]
    finish(scheduler, second, [6], [5])
    drafting.propose([7])
    fourth = plan_of(scheduler)
    assert (fourth.rows, fourth.drafts) == ([0, 1], [[7]])
    finish(scheduler, third, [5])
    assert scheduler.schedule() is None  # else both would run apart from now on
    finish(scheduler, fourth, [7, 8], [5])
    drafting.propose([])
    plan = plan_of(scheduler)
    assert (plan.rows, plan.num_accepted) == ([0, 1], [1])


def test_drafts_leave_every_running_request_its_token() -> None:
    scheduler = make(max_num_batched_tokens=5, max_num_seqs=3)
    requests = [add(scheduler, name, [2]) for name in "abc"]
    finish(scheduler, plan_of(scheduler), [5], [5], [5])
    for request in requests:
        request.propose([6, 7, 8])
    plan = plan_of(scheduler)
    assert plan.num_scheduled_tokens == [3, 1, 1]
    assert (plan.draft_rows, plan.drafts) == ([0], [[6, 7]])


def test_drafts_end_where_the_request_does() -> None:
    scheduler = make()
    request = add(scheduler, "a", [2, 3], max_tokens=4)
    finish(scheduler, plan_of(scheduler), [5])
    request.propose([6, 7, 8, 9, 10])
    plan = plan_of(scheduler)
    assert plan.drafts == [[6, 7]]  # and one sampled token are all that it may have
    [output] = finish(scheduler, plan, [6, 7, 8])
    assert output.finish_reason is FinishReason.LENGTH and output.token_ids == [6, 7, 8]
    request = add(scheduler, "b", [2] * 62)
    while len(request.token_ids) == 62:
        plan = plan_of(scheduler)
        done = request.num_computed_tokens == 62
        finish_some(scheduler, plan, [5] if done else None)
    request.propose([6])
    plan = plan_of(scheduler)
    assert plan.drafts == [] and plan.num_scheduled_tokens == [1]


def finish_some(scheduler: Scheduler, plan: StepPlan, tokens: list[int] | None) -> None:
    rows = [] if tokens is None else list(plan.rows)
    scheduler.update(plan, StepResult(plan.step_id, rows, [] if tokens is None else [tokens]))


def test_a_stop_token_ends_a_request_within_its_accepted_drafts() -> None:
    scheduler = make()
    request = add(scheduler, "a", [2, 3], min_tokens=3, logprobs=0)
    finish(scheduler, plan_of(scheduler), [5])
    request.propose([EOS, 6, EOS, 7])
    plan = plan_of(scheduler)
    [output] = finish(scheduler, plan, [EOS, 6, EOS, 7, 8])
    assert output.token_ids == [EOS, 6, EOS]
    assert output.finish_reason is FinishReason.STOP and output.stop_token_id is None
    assert not scheduler.has_work() and scheduler.stats().num_generated_tokens == 4
    assert scheduler.cache.stats().num_used_blocks == 0


def test_drafts_displace_nobody() -> None:
    scheduler = make(num_blocks=16, max_model_len=60, max_num_seqs=2)
    requests = [add(scheduler, name, [ord(name)] * 5, max_tokens=25) for name in "ab"]
    finish(scheduler, plan_of(scheduler), [5], [5])
    scheduler.cache.pools[0].blocks.allocate(12)  # two blocks each are held, and none is left
    assert scheduler.cache.pools[0].blocks.num_free == 0
    for request in requests:
        request.propose([6, 7, 8])
    plan = scheduler.schedule()
    assert plan is not None and plan.num_scheduled_tokens == [1, 1] and plan.drafts == []
    assert scheduler.stats().num_preemptions == 0


def test_what_a_preempted_request_accepted_is_kept() -> None:
    scheduler = make(max_in_flight_steps=2)
    request = add(scheduler, "a", [2, 3, 4])
    finish(scheduler, plan_of(scheduler), [5])
    request.propose([6, 7])
    plan = plan_of(scheduler)
    scheduler.reset_prefix_cache()
    assert request.row is None and request.num_pending_steps == 1
    assert scheduler.schedule() is None
    finish(scheduler, plan, [6, 7, 8])
    assert scheduler.num_waiting_tokens == 7
    request.propose([9])
    plan = plan_of(scheduler)
    assert plan.new_rows[0].token_ids == [2, 3, 4, 5, 6, 7, 8]
    assert plan.accepted_rows == [] and plan.draft_rows == []
