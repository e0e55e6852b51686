"""Requests with grammars, from compiling to their end, over a scheduler without a worker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotshoe.errors import RequestError
from hotshoe.grammar.backends import GrammarBackends
from hotshoe.grammar.constraints import Constraints
from hotshoe.scheduler import Request, Scheduler, SchedulerConfig
from hotshoe.types import FinishReason, GrammarSpec, SamplingParams, StepPlan, StepResult

VOCAB_SIZE, EOS, SPECIAL = 300, 255, 256


def ids_in(mask: bytes | None) -> set[int]:
    assert mask is not None
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


class Rig:
    """Constraints, their scheduler, and steps whose tokens a test chooses."""

    def __init__(self, toy, vocabulary, timeout_s: float = 60, **settings) -> None:
        sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64}
        self.scheduler = Scheduler(
            SchedulerConfig(**{**sizes, "num_blocks": 64, "block_size": 4, **settings})
        )
        backends = GrammarBackends({"toy": lambda: toy})
        self.constraints = Constraints(
            self.scheduler, backends, lambda: vocabulary, 10**6, timeout_s, VOCAB_SIZE
        )
        self.backends = backends

    def add(
        self, request_id: str, value: str, after=(), prompt=(1, 2), eos=(EOS,), **params
    ) -> Request:
        grammar = self.backends.choose(GrammarSpec.regex(value, after))
        all_params = SamplingParams(grammar=grammar, **{"max_tokens": 20, **params})
        request = Request(request_id, list(prompt), all_params, eos_token_ids=frozenset(eos))
        self.constraints.add(request)
        return request

    def limit(self, request_id: str, after, free_tokens: int, opening=(), **params) -> Request:
        spec = self.backends.choose(GrammarSpec.text(after, free_tokens, opening))
        all_params = SamplingParams(grammar=spec, **{"max_tokens": 20, **params})
        request = Request(request_id, [1, 2], all_params, eos_token_ids=frozenset({EOS}))
        self.constraints.add(request)
        return request

    def ready(self) -> list:
        while self.constraints.compiling:
            self.constraints.wait(0.02)
            failed = self.constraints.collect()
            self.scheduler.check()
            if failed:
                return failed
        return []

    def plan(self) -> StepPlan | None:
        return self.scheduler.schedule()

    def finish(self, plan: StepPlan, *tokens: int, failed: dict[int, str] | None = None) -> list:
        rows = plan.rows[: len(tokens)]
        result = StepResult(plan.step_id, rows, [[token] for token in tokens], failed or {})
        outputs = self.constraints.advance(self.scheduler.update(plan, result))
        self.scheduler.check()
        return outputs

    def step(self, *tokens: int) -> list:
        plan = self.plan()
        assert plan is not None
        return self.finish(plan, *tokens)


@pytest.fixture
def rig(toy, vocabulary):
    made = Rig(toy, vocabulary)
    yield made
    toy.gate.set()
    made.constraints.close()


def test_a_request_waits_for_its_grammar_and_others_go_on(rig, toy) -> None:
    toy.gate.clear()
    request = rig.add("a", "8 9")
    rig.scheduler.add(Request("b", [3], SamplingParams()))
    assert rig.constraints.compiling
    assert rig.constraints.collect() == []
    plan = rig.plan()
    assert [new.token_ids for new in plan.new_rows] == [[3]]
    rig.finish(plan, 4)
    toy.gate.set()
    rig.ready()
    plan = rig.plan()
    assert [new.token_ids for new in plan.new_rows] == [[1, 2]]
    assert plan.mask_rows == [request.row]
    assert [ids_in(mask) for mask in plan.masks] == [{8}]


def test_masks_follow_the_tokens_and_the_end_needs_no_token(rig) -> None:
    request = rig.add("a", "8 9 10|8 9")
    rig.ready()
    rig.step(8)
    assert ids_in(request.mask) == {9}
    rig.step(9)
    assert ids_in(request.mask) == {10, EOS}
    token, end = rig.step(10)
    assert (token.token_ids, token.finish_reason) == ([10], None)
    assert (end.token_ids, end.finish_reason) == ([], FinishReason.STOP)
    assert not rig.scheduler.has_work()


def test_an_ending_token_ends(rig) -> None:
    rig.add("a", "8 9 10|8 9")
    rig.ready()
    rig.step(8)
    rig.step(9)
    [output] = rig.step(EOS)
    assert (output.token_ids, output.finish_reason) == ([EOS], FinishReason.STOP)


def test_which_tokens_may_end(rig) -> None:
    ignoring = rig.add("a", "8|8 9", ignore_eos=True)
    stopping = rig.add("b", "8|8 9", stop_token_ids=(SPECIAL, 70))
    rig.ready()
    rig.step(8, 8)
    assert ids_in(ignoring.mask) == {9}
    assert ids_in(stopping.mask) == {9, EOS, SPECIAL}  # 70 is text: the grammar's affair


def test_tokens_that_end_a_text_may_lie_beyond_the_logits(rig) -> None:
    request = rig.add("a", "8|8 9", eos=(EOS, VOCAB_SIZE, 10**6))
    assert rig.ready() == []
    rig.step(8)
    assert ids_in(request.mask) == {9, EOS}


def test_a_batch_is_filled_at_once(rig, toy) -> None:
    for i in range(5):
        rig.add(str(i), "8 9 10")
    rig.ready()
    rig.step(*[8] * 5)
    assert toy.fills[-1] == 5


def test_the_grammar_begins_behind_a_section(rig) -> None:
    # The prompt holds the same end, from an earlier turn.
    request = rig.add("a", "8 9", after=((5, 6), (7,)), prompt=(5, 6, 7))
    rig.ready()
    plan = rig.plan()
    assert plan.mask_rows == []
    rig.finish(plan, 6)
    rig.step(5)
    assert request.mask is None
    rig.step(6)
    assert ids_in(request.mask) == {8}
    rig.step(8)
    assert rig.step(9)[-1].finish_reason is FinishReason.STOP


def test_a_section_may_not_begin_in_the_prompt(rig) -> None:
    request = rig.add("a", "8", after=((5, 6),), prompt=(1, 5))
    rig.ready()
    rig.step(6)
    assert request.mask is None


def test_a_row_is_held_until_its_token_is_known(toy, vocabulary) -> None:
    rig = Rig(toy, vocabulary, max_in_flight_steps=2)
    request = rig.add("a", "8 9 10")
    rig.scheduler.add(Request("b", [3], SamplingParams()))
    rig.ready()
    first = rig.plan()
    assert len(first.rows) == 2
    second = rig.plan()  # the other row overlaps
    assert second.rows == [1 - request.row] == [first.rows[1]]
    rig.finish(first, 8, 4)
    third = rig.plan()
    assert sorted(third.rows) == [0, 1]
    assert [ids_in(mask) for mask in third.masks] == [{9}]
    rig.constraints.close()


def test_a_preempted_request_goes_on_where_it_was(toy, vocabulary) -> None:
    rig = Rig(toy, vocabulary, max_in_flight_steps=2)
    request = rig.add("a", "8 9 10 11")
    rig.ready()
    rig.step(8)
    plan = rig.plan()
    rig.scheduler.reset_prefix_cache()  # preempts it while its token is under way
    assert rig.plan() is None
    rig.finish(plan, 9)
    plan = rig.plan()
    assert [new.token_ids for new in plan.new_rows] == [[1, 2, 8, 9]]
    assert [ids_in(mask) for mask in plan.masks] == [{10}]
    assert request.was_preempted
    rig.constraints.close()


def test_a_mask_comes_only_when_the_prompt_is_done(toy, vocabulary) -> None:
    rig = Rig(toy, vocabulary, max_num_batched_tokens=8)
    rig.add("a", "8", prompt=range(1, 13))
    rig.ready()
    plan = rig.plan()
    assert (plan.num_scheduled_tokens, plan.masks) == ([8], [])
    rig.finish(plan)
    assert len(rig.plan().masks) == 1
    rig.constraints.close()


FAILURES = {
    "broken": ("broken", {}, [], "grammar: a bracket is open"),
    "too large": ("13 8", {}, [13], "grammar: it grew too large"),
    "dead end": ("8 255", {}, [8], "grammar: it needs text that no token"),
    "not allowed": ("8 9", {}, [9], "grammar: the grammar does not allow the sampled token"),
    "too large to take it": ("8 9", {}, [13], "grammar: it grew too large"),
    "too short": ("8", {"min_tokens": 3}, [8], "it ended after 1 tokens, but min_tokens is 3"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_ends_one_request_alone(rig, toy, name: str) -> None:
    value, params, tokens, error = FAILURES[name]
    rig.add("a", value, **params)
    outputs = rig.ready() or rig.step(*tokens)
    assert outputs[-1].finish_reason is FinishReason.ERROR
    assert error in outputs[-1].error
    other = rig.add("b", "8 9")
    rig.ready()
    rig.step(8)
    assert ids_in(other.mask) == {9}
    assert rig.scheduler.stats().num_finished == {"error": 1}


def test_a_request_does_not_wait_for_ever(toy, vocabulary) -> None:
    toy.gate.clear()
    rig = Rig(toy, vocabulary, timeout_s=0.01)
    rig.add("a", "8")
    [output] = rig.ready()
    assert output.finish_reason is FinishReason.ERROR
    assert "its compilation took longer than 0.01 s" in output.error
    assert not rig.scheduler.has_work()
    toy.gate.set()
    rig.constraints.close()


def test_other_rules_that_forbid_everything_are_named(rig) -> None:
    rig.add("a", "8 9")
    rig.ready()
    plan = rig.plan()
    [output] = rig.finish(plan, failed={plan.rows[0]: "no token can be sampled"})
    assert "no token can be sampled; the grammar leaves only tokens that logit_bias" in output.error


def test_an_empty_text_may_end_at_once(rig, toy) -> None:
    request = rig.add("a", " ")
    rig.ready()
    assert ids_in(request.mask) == {EOS}


def test_a_departed_request_is_forgotten_in_every_state(rig, toy) -> None:
    toy.gate.clear()
    for request_id in ("a", "b"):
        rig.add(request_id, "8 9")
    rig.scheduler.abort("a")
    rig.constraints.discard("a")
    toy.gate.set()
    rig.ready()
    rig.scheduler.abort("b")
    rig.constraints.discard("b")
    rig.constraints.discard("never seen")
    assert not rig.scheduler.has_work()
    assert not rig.constraints.compiling


def test_a_refused_request_leaves_nothing(rig) -> None:
    rig.add("a", "8")
    with pytest.raises(RequestError, match="in use"):
        rig.add("a", "8")


def test_drafts_are_kept_as_far_as_the_grammar_goes(rig) -> None:
    request = rig.add("a", "8 9 10 11|8 9|8 9 12 5")
    rig.ready()
    rig.step(8)
    cases = [
        ([9, 10, 11, 7], [9, 10], [{10, 12, EOS}, {11}]),  # behind 11 no text can follow
        ([9, 12, 10], [9, 12], [{10, 12, EOS}, {5}]),
        ([9, EOS, 10], [9], [{10, 12, EOS}]),
        ([7, 9], [], []),
        ([EOS], [], []),
    ]
    for drafts, kept, masks in cases:
        found, made = rig.constraints.extend(request, drafts)
        assert (found, [ids_in(mask) for mask in made]) == (kept, masks)
    assert ids_in(request.mask) == {9}  # trying drafts has moved nothing
    request.propose(*rig.constraints.extend(request, [9, 10, 11]))
    plan = rig.plan()
    assert plan is not None and plan.drafts == [[9, 10]]
    assert plan.mask_rows == [request.row] * 3
    assert [ids_in(mask) for mask in plan.masks] == [{9}, {10, 12, EOS}, {11}]
    result = StepResult(plan.step_id, [request.row], [[9, 12]])
    rig.constraints.advance(rig.scheduler.update(plan, result))
    assert ids_in(request.mask) == {5}
    request.propose([])
    assert [o.finish_reason for o in rig.step(5)] == [None, FinishReason.STOP]


def test_drafts_end_before_the_grammar_begins(rig) -> None:
    request = rig.add("a", "8 9", after=[(40, 41)])
    rig.ready()
    rig.step(40)
    assert rig.constraints.extend(request, [3, 40, 41, 8]) == ([3, 40], [])
    assert rig.constraints.extend(request, [41, 8]) == ([], [])
    assert rig.constraints.extend(request, [5, 41]) == ([5, 41], [])


class Simple:
    """A matcher that cannot be copied."""

    def accept(self, token_id: int) -> bool:
        return True

    def may_end(self) -> bool:
        return False

    def failure(self) -> None:
        return None


def test_who_cannot_try_drafts_has_none(rig) -> None:
    request = rig.add("a", "8 9 10")
    rig.ready()
    rig.step(8)
    rig.constraints._running["a"].matcher = Simple()
    assert rig.constraints.extend(request, [9]) == ([], [])


def test_free_text_is_ended_when_it_has_had_its_tokens(rig, toy) -> None:
    request = rig.limit("a", after=[(40, 41)], free_tokens=3)
    assert not rig.constraints.compiling and not toy.compiled
    for token in (5, 40, 6):
        assert request.mask is None
        rig.step(token)
    for token in (40, 41):
        assert ids_in(request.mask) == {token}
        rig.step(token)
    assert request.mask is None
    rig.step(70)
    assert request.mask is None
    [output] = rig.step(EOS)
    assert output.finish_reason is FinishReason.STOP
    assert not rig.constraints._running


def test_an_end_that_has_begun_is_gone_on_with(rig) -> None:
    request = rig.limit("a", after=[(40, 41), (42,)], free_tokens=2)
    rig.step(5)
    rig.step(40)
    assert ids_in(request.mask) == {41}


def test_no_tokens_at_all_for_free_text(rig) -> None:
    request = rig.limit("a", after=[(40,)], free_tokens=0)
    plan = rig.plan()
    assert [ids_in(mask) for mask in plan.masks] == [{40}]
    rig.finish(plan, 40)
    assert request.mask is None


def test_text_that_ended_of_its_own_is_not_ended_again(rig) -> None:
    request = rig.limit("a", after=[(40, 41), (42,)], free_tokens=3)
    for token in (5, 42, 6, 7, 8):
        rig.step(token)
        assert request.mask is None


def test_a_limit_holds_for_text_that_begins_as_told(rig) -> None:
    opened = rig.limit("a", after=[(40,)], free_tokens=3, opening=[(30, 31), (32,)])
    plain = rig.limit("b", after=[(40,)], free_tokens=3, opening=[(30, 31), (32,)])
    for tokens in ((30, 30), (31, 9), (5, 5)):
        rig.step(*tokens)
    assert ids_in(opened.mask) == {40}
    assert plain.mask is None


def test_a_grammar_begins_behind_text_that_was_ended(rig) -> None:
    grammar = replace(GrammarSpec.regex("8 9", [(40,)]), free_tokens=2)
    params = SamplingParams(grammar=rig.backends.choose(grammar), max_tokens=20)
    request = Request("a", [1, 2], params, eos_token_ids=frozenset({EOS}))
    rig.constraints.add(request)
    rig.ready()
    rig.step(5)
    assert request.mask is None
    rig.step(6)
    assert ids_in(request.mask) == {40}
    rig.step(40)
    assert ids_in(request.mask) == {8}


def test_drafts_stay_within_the_free_text(rig) -> None:
    request = rig.limit("a", after=[(40,)], free_tokens=5)
    rig.step(5)
    assert rig.constraints.extend(request, [6, 7, 8, 9]) == ([6, 7, 8], [])
    assert rig.constraints.extend(request, [6, 40, 8]) == ([6], [])
    for token in (6, 7, 8, 9):
        rig.step(token)
    assert rig.constraints.extend(request, [40, 8]) == ([], [])


def test_equal_grammars_with_other_limits_are_chosen_and_compiled_once(rig, toy) -> None:
    for limit in (2, 3):
        grammar = replace(GrammarSpec.regex("8 9", [(40,)]), free_tokens=limit)
        chosen = rig.backends.choose(grammar)
        assert (chosen.free_tokens, chosen.after) == (limit, ((40,),))
        params = SamplingParams(grammar=chosen)
        rig.constraints.add(Request(str(limit), [1], params))
    rig.ready()
    assert toy.compiled == ["8 9"]
