"""The selector: who is chosen, who is refused, and what is said about it."""

import math
import random
from dataclasses import dataclass, replace
from functools import partial

import pytest

from hotshoe.errors import SelectionError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    REFERENCE,
    SLOTS,
    Candidate,
    GatedMlpSpec,
    LinearSpec,
    NormSpec,
    Selector,
    Slot,
    accept,
    accept_unless,
    refuse,
)
from hotshoe.slots.base import resolve_lazy
from hotshoe.slots.versions import since

FACTS = DeviceFacts("test", "cpu", "a device", "arch", 1 << 30, 1)
SPEC = NormSpec(64, 1e-6, "float32")
OTHER = NormSpec(128, 1e-6, "float32")


class Named(str):
    """An operation that is just its own name."""

    __slots__ = ()

    def __call__(self):
        """Do nothing."""


def candidate(name, verdict, slot="rms_norm"):
    """Offer an operation that is just its own name."""
    return Candidate(slot, name, lambda spec, facts: verdict, lambda spec, facts: Named(name))


def selector(*candidates, **options):
    return Selector(SLOTS, candidates, FACTS, **options)


def test_the_highest_score_wins_whatever_the_order():
    offered = [candidate(name, accept(score)) for name, score in [("a", 1), ("b", 9), ("c", 5)]]
    random.shuffle(offered)
    assert selector(*offered).choose("rms_norm", SPEC) == "b"


def test_ties_break_by_name_whatever_the_order():
    offered = [candidate(name, accept(7)) for name in "dbca"]
    random.shuffle(offered)
    assert selector(*offered).choose("rms_norm", SPEC) == "a"


def test_the_reference_serves_when_all_refuse():
    chosen = selector(candidate("fast", refuse("too wide"))).decide("rms_norm", SPEC)
    assert chosen.chosen == REFERENCE and not chosen.native
    (other,) = chosen.others
    assert other[0] == "fast" and other[1].reason == "too wide" and not other[1].accepted


def test_the_decision_tells_score_reason_and_the_others():
    chosen = selector(
        candidate("good", accept(5, "fits")),
        candidate("better", accept(8, "fits well")),
        candidate("none", refuse("no such device")),
    ).decide("rms_norm", SPEC)
    assert (chosen.slot, chosen.spec, chosen.chosen) == ("rms_norm", SPEC, "better")
    assert (chosen.score, chosen.reason, chosen.native) == (8, "fits well", True)
    assert [name for name, _ in chosen.others] == ["good", "none", REFERENCE]


def test_a_score_below_zero_loses_to_the_reference():
    assert selector(candidate("slow", accept(-1))).decide("rms_norm", SPEC).chosen == REFERENCE


def test_candidates_see_the_specification_and_the_device():
    seen = []

    def supports(spec, facts):
        seen.append((spec, facts))
        return accept(1) if spec.hidden_size == 64 else refuse("only 64")

    chooser = selector(Candidate("rms_norm", "c", supports, lambda *given: partial(print, *given)))
    assert chooser.choose("rms_norm", SPEC).args == (SPEC, FACTS)
    assert chooser.decide("rms_norm", OTHER).chosen == REFERENCE
    assert seen == [(SPEC, FACTS), (OTHER, FACTS)]


def test_equal_specifications_are_asked_once_and_built_anew():
    asked, built = [], []

    def supports(spec, facts):
        asked.append(spec)
        return accept(1)

    def build(spec, facts):
        built.append(spec)
        return lambda: None

    chooser = selector(Candidate("rms_norm", "c", supports, build))
    first, second = (chooser.choose("rms_norm", NormSpec(64, 1e-6, "float32")) for _ in range(2))
    assert first is not second
    assert len(asked) == 1 and len(built) == 2
    assert list(chooser.decisions) == [("rms_norm", SPEC)]


def judge_by_name(spec, facts):
    return accept(3) if spec == SPEC else refuse("too wide")


def test_a_judge_may_be_given_by_name():
    chooser = selector(Candidate("rms_norm", "c", f"{__name__}:judge_by_name", lambda *_: None))
    assert chooser.decide("rms_norm", SPEC).chosen == "c"
    assert dict(chooser.decide("rms_norm", OTHER).others)["c"].reason == "too wide"
    lost = selector(Candidate("rms_norm", "c", "no_such_module:supports", "no_such_module:build"))
    decision = lost.decide("rms_norm", SPEC)
    assert decision.chosen == REFERENCE
    verdict = dict(decision.others)["c"]
    assert verdict.defect and "No module named 'no_such_module'" in verdict.reason


def test_a_decision_builds_nothing():
    broken = Candidate("rms_norm", "c", lambda spec, facts: accept(1), "no_such_module:build")
    assert selector(broken).decide("rms_norm", SPEC).chosen == "c"


def test_who_cannot_build_what_it_accepted_counts_as_refusing():
    missing = Candidate("rms_norm", "c", lambda spec, facts: accept(9), "no_such_module:build")
    chooser = selector(missing, candidate("d", accept(5)))
    assert chooser.choose("rms_norm", SPEC) == "d"
    verdict = dict(chooser.decisions["rms_norm", SPEC].others)["c"]
    assert verdict.defect and not verdict.accepted
    assert "could not be built: ModuleNotFoundError: No module named 'no_such" in verdict.reason
    assert chooser.uses == {("rms_norm", SPEC): 1}


def test_a_forced_candidate_that_cannot_build_is_an_error():
    missing = Candidate("rms_norm", "c", lambda spec, facts: accept(9), "no_such_module:build")
    chooser = selector(missing, forced={"rms_norm": "c"})
    with pytest.raises(SelectionError, match="slot rms_norm, candidate c: it accepted, but"):
        chooser.choose("rms_norm", SPEC)


RAISED = "supports() raised TypeError: Verdict.score is of type int, or None, not"


@pytest.mark.parametrize(
    ("supports", "reason"),
    [
        (lambda spec, facts: 1 / 0, "supports() raised ZeroDivisionError: division by zero"),
        (lambda spec, facts: accept("ten"), f"{RAISED} 'ten'"),
        (lambda spec, facts: accept(math.nan), f"{RAISED} nan"),
        (lambda spec, facts: True, "supports() returned bool, not a Verdict"),
    ],
)
def test_who_gives_no_verdict_counts_as_refusing(supports, reason):
    chosen = selector(Candidate("rms_norm", "c", supports, "m:f")).decide("rms_norm", SPEC)
    assert chosen.chosen == REFERENCE
    assert dict(chosen.others)["c"].reason == reason
    assert dict(chosen.others)["c"].defect


def test_a_forced_candidate_wins_over_better_ones():
    offered = candidate("good", accept(1)), candidate("better", accept(9))
    forced = selector(*offered, forced={"rms_norm": "good"})
    assert forced.choose("rms_norm", SPEC) == "good"
    assert selector(*offered, forced={"rms_norm": REFERENCE}).decide("rms_norm", SPEC).score == 0


def test_of_several_forced_candidates_the_best_serves():
    offered = [
        candidate("best", accept(9)),
        candidate("good", accept(5)),
        candidate("b", refuse("no")),
    ]
    chooser = selector(*offered, forced={"rms_norm": "good,b"})
    assert chooser.choose("rms_norm", SPEC) == "good"
    with pytest.raises(SelectionError, match=r"no candidate 'c'"):
        selector(*offered, forced={"rms_norm": "good,c"})
    chooser = selector(*offered, forced={"rms_norm": "b," + REFERENCE})
    assert chooser.decide("rms_norm", SPEC).chosen == REFERENCE


def test_a_forced_candidate_that_refuses_is_an_error_with_its_reason():
    offered = candidate("good", refuse("needs 128")), candidate("other", accept(9))
    forced = selector(*offered, forced={"rms_norm": "good"})
    with pytest.raises(SelectionError, match=r"rms_norm=good.*hidden_size=64.*needs 128"):
        forced.choose("rms_norm", SPEC)


def test_forcing_one_slot_leaves_the_others():
    add = candidate("quick", accept(3), slot="embedding")
    chooser = selector(candidate("a", accept(1)), add, forced={"rms_norm": REFERENCE})
    assert chooser.decide("embedding", SPEC).chosen == "quick"


def test_forcing_an_unknown_name_lists_the_choices():
    with pytest.raises(SelectionError, match=r"'fats'.*fast.*candidates: fast, reference"):
        selector(candidate("fast", accept(1)), forced={"rms_norm": "fats"})


def test_forcing_an_unknown_slot_lists_the_slots():
    with pytest.raises(SelectionError, match=r"'rms_nrom'.*rms_norm"):
        selector(forced={"rms_nrom": "fast"})


def test_an_unknown_slot_is_an_error():
    with pytest.raises(SelectionError, match="rotary_and_cache"):
        selector().decide("flux", SPEC)
    with pytest.raises(SelectionError, match="candidate 'x': unknown slot 'flux'"):
        selector(candidate("x", accept(1), slot="flux"))


def test_of_two_candidates_of_one_name_neither_is_taken():
    twins = candidate("same", accept(1)), candidate("same", accept(2))
    decision = selector(*twins, candidate("other", accept(0))).decide("rms_norm", SPEC)
    assert decision.chosen == "other"
    verdict = dict(decision.others)["same"]
    assert verdict.defect and verdict.reason.startswith("two candidates have this name")
    with pytest.raises(SelectionError, match=r"rms_norm=same cannot serve .* two candidates"):
        selector(*twins, forced={"rms_norm": "same"}).decide("rms_norm", SPEC)


def test_no_candidate_may_be_named_as_the_reference():
    with pytest.raises(SelectionError, match="slot rms_norm may not be named reference"):
        selector(candidate(REFERENCE, accept(2)))


@dataclass(frozen=True)
class Inner:
    """A record within a specification, with a field that came later."""

    bits: int = 8
    odd: bool = since(3, False)


@dataclass(frozen=True)
class Grown:
    """A specification that has grown."""

    size: int
    inner: Inner = Inner()
    twist: bool = since(2, False)


def grown(hook_api):
    """A selector over a candidate of that version, which overlooks whatever is new."""
    slots = {"grown": Slot("grown", Grown, "hotshoe.slots.reference.norm:build_norm", "")}
    eager = replace(candidate("eager", accept(9), slot="grown"), hook_api=hook_api)
    return Selector(slots, [eager], FACTS)


@pytest.mark.parametrize(
    ("hook_api", "spec", "text"),
    [
        (1, Grown(4, twist=True), "does not know twist=True, which came with 2"),
        (2, Grown(4, Inner(odd=True)), "does not know odd=True, which came with 3"),
    ],
)
def test_a_candidate_is_not_asked_for_what_came_after_it(hook_api, spec, text):
    decision = grown(hook_api).decide("grown", spec)
    assert decision.chosen == REFERENCE
    verdict = dict(decision.others)["eager"]
    assert not verdict.accepted and not verdict.defect
    assert f"built for hook API {hook_api} and {text}; install a version" in verdict.reason
    assert grown(hook_api + 1).decide("grown", spec).chosen == "eager"


def test_an_older_candidate_serves_what_it_knows():
    for hook_api in (None, 1, 2, 3):
        assert grown(hook_api).decide("grown", Grown(4, Inner(bits=4))).chosen == "eager"


def test_require_native_refuses_the_reference_and_lists_every_refusal():
    offered = candidate("a", refuse("too wide")), candidate("b", refuse("too narrow"))
    chooser = selector(*offered, require_native=True)
    with pytest.raises(SelectionError, match=r"require-native.*a: too wide; b: too narrow"):
        chooser.choose("rms_norm", SPEC)
    with pytest.raises(SelectionError, match="platform offers none"):
        chooser.choose("embedding", SPEC)


def test_require_native_takes_a_native_candidate_of_low_score():
    chooser = selector(candidate("slow", accept(-1)), require_native=True)
    assert chooser.decide("rms_norm", SPEC).native


def test_batch_invariance_takes_only_who_claims_it():
    claims = replace(candidate("slow", accept(1)), batch_invariant=True)
    chooser = selector(candidate("fast", accept(9)), claims, batch_invariant=True)
    decision = chooser.decide("rms_norm", SPEC)
    assert decision.chosen == "slow"
    assert "--batch-invariant is set" in dict(decision.others)["fast"].reason
    with pytest.raises(SelectionError, match=r"--batch-invariant allows.*reference: its results"):
        chooser.decide("lora", SPEC)  # nothing wraps its reference


def test_every_slot_has_a_reference_that_builds():
    for slot in SLOTS.values():
        assert callable(resolve_lazy(slot.reference)), slot.name
        assert slot.doc


def test_forcing_the_reference_contradicts_require_native():
    with pytest.raises(SelectionError, match="contradicts --require-native"):
        selector(forced={"rms_norm": "reference"}, require_native=True)


def test_a_candidate_that_builds_nothing_is_passed_over():
    offered = Candidate("rms_norm", "fast", lambda s, f: accept(1), lambda spec, facts: None)
    chooser = selector(offered)
    assert callable(chooser.choose("rms_norm", SPEC))
    [(_, verdict)] = chooser.decide("rms_norm", SPEC).others
    assert verdict.defect and "build() returned None, not an operation" in verdict.reason


def divide_by_zero():
    return 1 // 0


def test_a_fault_names_slot_candidate_and_package_and_what_to_do():
    def build(spec, facts):
        return lambda x: divide_by_zero()

    offered = Candidate("rms_norm", "fast", lambda spec, facts: accept(1), build, package="pack 2")
    chooser = selector(offered)
    assert chooser.choose("gated_mlp", None) is None  # composed, so nobody's operation
    operation = chooser.choose("rms_norm", SPEC)
    with pytest.raises(ZeroDivisionError) as caught:
        operation(0)
    fault = str(chooser.fault(caught.value))
    assert fault.startswith(
        "candidate fast of slot rms_norm (pack 2) raised ZeroDivisionError: integer division"
    )
    assert f"at {__file__}:" in fault
    assert "`hotshoe conformance --platform test` tests it" in fault
    assert fault.endswith("--kernel rms_norm=reference does without it")
    assert selector(offered).fault(caught.value) is None


def test_a_fault_in_a_reference_is_not_told_to_go():
    chooser = selector()
    operation = chooser.choose("rms_norm", SPEC)
    with pytest.raises(AttributeError) as caught:
        operation(None, None)
    fault = str(chooser.fault(caught.value))
    assert fault.startswith("candidate reference of slot rms_norm (core) raised AttributeError")
    assert "--kernel" not in fault


def test_a_refusal_has_a_reason():
    with pytest.raises(ValueError, match="has no reason"):
        refuse(" ")


def test_a_layout_may_be_named_by_where_it_is():
    plain = Candidate("attention", "a", lambda spec, facts: accept(1), build=None)
    assert plain.declared_layout(None, FACTS) is None
    named = replace(plain, layout=f"{__name__}:declare")
    assert named.declared_layout("spec", FACTS) == ("spec", FACTS)


def declare(spec, facts):
    return spec, facts


def test_slots_within_a_block_that_is_served_whole_are_named():
    spec = GatedMlpSpec(LinearSpec(64, 128, "float32"), LinearSpec(64, 64, "float32"), "silu")
    whole = Candidate("gated_mlp", "whole", lambda spec, facts: accept(1), build=None)
    chooser = selector(whole)
    assert chooser.unasked() == {}
    chooser.decide("gated_mlp", spec)
    why = ("whole serves gated_mlp whole", "candidates: reference")
    assert chooser.unasked() == {"linear": why, "gated_activation": why}
    chooser.decide("linear", spec.down)
    assert list(chooser.unasked()) == ["gated_activation"]


def test_the_first_reason_that_holds_refuses() -> None:
    assert accept_unless({"a": False, "b": True, "c": True}, 7) == refuse("b")
    assert accept_unless({"a": False}, 7, "fast") == accept(7, "fast")
