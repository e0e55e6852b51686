"""What a platform declares is checked before anything of it runs."""

from dataclasses import replace

import pytest

from hotshoe.slots import accept
from hotshoe_conformance.host import Host
from hotshoe_conformance.kit import Kit, Options

WHOLE = Options(quick=True, seed=1)


def facts(**changes):
    return lambda self: replace(Host().facts(), platform="mine", **changes)


@pytest.mark.parametrize(
    ("changes", "defect"),
    [
        ({"memory_bytes": 0}, "facts().memory_bytes is not positive"),
        ({"compute_units": -1}, "facts().compute_units is not positive"),
        ({"features": frozenset({1})}, "facts().features is not a frozenset of strings"),
    ],
)
def test_facts_that_cannot_be(installed, changes, defect: str) -> None:
    found = Kit("mine", WHOLE, installed(facts=facts(**changes))).undeclared
    assert [d.what for d in found] == [defect]


def test_facts_of_another_platform(installed) -> None:
    [found] = Kit("mine", WHOLE, installed(facts=lambda self: Host().facts())).undeclared
    assert found.what == "facts().platform is 'conformance-host', not 'mine'"


def test_candidates_on_devices_that_they_have_never_seen(installed, offer) -> None:
    def supports(spec, facts):
        assert facts.platform == "mine"
        return accept(1)

    [found] = Kit("mine", WHOLE, installed(offer("sample", "m:f", supports))).undeclared
    assert found.what.startswith("sample/mine on unknown: supports() raised AssertionError")


def test_names_and_claims(installed, offer) -> None:
    found = Kit("mine", WHOLE, installed(offer("sample", "m:f", batch_invariant=1))).undeclared
    assert [d.what for d in found] == ["sample/mine: batch_invariant is 1"]


def test_tolerances_that_are_none(installed, offer) -> None:
    found = Kit("mine", WHOLE, installed(offer("sample", "m:f", tolerance=2))).undeclared
    assert [d.what for d in found] == ["sample/mine: tolerance is 2, not a number from 0 to 1"]


def test_nothing_to_object_to(installed, offer) -> None:
    assert Kit("mine", WHOLE, installed(offer("sample", "m:f"))).undeclared == []
