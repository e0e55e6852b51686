"""Candidates of whole layers are asked for what they list, on devices that have what they need."""

from dataclasses import replace

import pytest

from hotshoe.platform import DeviceFacts
from hotshoe.slots import COMPOSED, SLOTS, Candidate, Requires, Selector, accept
from hotshoe_conformance.cases.decoder_layer import layer

FACTS = DeviceFacts("plain", "cpu", "a test's device", "v1", 1 << 30, 4, frozenset({"fast"}))


def selector(facts: DeviceFacts = FACTS, **claims: object) -> Selector:
    whole = Candidate("decoder_layer", "whole", lambda spec, facts: accept(5), "none:at_all")
    return Selector(SLOTS, [replace(whole, **claims)], facts)


def verdict(found: Selector, **changes: object) -> str:
    decision = found.decide("decoder_layer", layer(**changes))
    assert decision.chosen in ("whole", COMPOSED)
    return "" if decision.chosen == "whole" else dict(decision.others)["whole"].reason


def test_a_feature_that_is_not_listed_is_refused() -> None:
    plain = selector()
    assert verdict(plain) == ""
    assert verdict(plain, window=7) == "it does not list window among its features"
    some = selector(features=frozenset({"window", "bias"}))
    assert verdict(some, window=7, bias=True) == ""
    assert verdict(some, window=7, sinks=True, adapters=True) == (
        "it does not list adapters, sinks among its features"
    )


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        (Requires(archs=frozenset({"v1", "v2"}), features=frozenset({"fast"})), ""),
        (Requires(archs=frozenset({"v3", "v2"})), "architecture v1 is none of v2, v3"),
        (Requires(features=frozenset({"fast", "wide"})), "the device lacks wide"),
        (Requires(memory_bytes=1 << 31), "memory_bytes is 1073741824, below 2147483648"),
        (Requires(compute_units=5), "compute_units is 4, below 5"),
        (Requires(modules=("json", "no_such_module")), "module no_such_module is not installed"),
    ],
)
def test_what_a_device_lacks_is_said(requires: Requires, reason: str) -> None:
    assert verdict(selector(requires=requires)) == reason


def test_requirements_hold_in_every_slot() -> None:
    needs = Requires(archs=frozenset({"v2"}))
    found = Candidate("linear", "mine", lambda spec, facts: accept(5), "none:x", requires=needs)
    own = Selector(SLOTS, [found], FACTS)
    decision = own.decide("linear", layer().o)
    assert decision.chosen == "reference"
    assert dict(decision.others)["mine"].reason == "architecture v1 is none of v2"


def test_a_part_that_is_forced_composes_the_layer() -> None:
    whole = Candidate("decoder_layer", "whole", lambda spec, facts: accept(5), "none:at_all")
    found = Selector(SLOTS, [whole], FACTS, forced={"linear": "reference"})
    assert found.decide("decoder_layer", layer()).chosen == COMPOSED


def test_what_a_whole_layer_serves_is_told_as_not_asked() -> None:
    found = selector()
    found.decide("decoder_layer", layer())
    assert found.unasked()["attention"] == (
        "whole serves decoder_layer whole",
        "candidates: reference",
    )
    assert "gated_mlp" in found.unasked()
