"""What is under test: configuration, the ranks there can be, candidates and the reference last."""

import pytest

from hotshoe.errors import ConfigError, SelectionError
from hotshoe.plugins.platforms import choose_platform
from hotshoe.slots import REFERENCE, SLOTS, KVLayout, accept
from hotshoe.slots.reference.attention import Attention
from hotshoe_conformance.subject import declared_layout, offered, resolved, why_alone


def test_a_configuration_alone_and_as_one_of_several(installed) -> None:
    mine = choose_platform(installed(), "mine")
    assert resolved(mine, {}).tensor_parallel_size == 1
    with pytest.raises(ConfigError, match="mine runs on one device"):
        resolved(mine, {}, rank=0, size=2)
    cpu = choose_platform(installed(), "cpu")
    with pytest.raises(ConfigError, match="isa"):
        resolved(cpu, {"isa": "none"})


def test_why_there_can_be_no_ranks(installed) -> None:
    reason = (
        "platform mine runs on one device; leave tensor_parallel_size and "
        "pipeline_parallel_size at 1"
    )
    assert why_alone(installed(), "mine", {}, 2) == reason
    assert why_alone(installed(), "cpu", {}, 1) == ""


def test_every_slot_has_its_reference_last(installed, offer) -> None:
    plugins = installed(offer("rms_norm", "m:f"))
    mine = choose_platform(plugins, "mine")
    found = offered(mine, plugins, mine.facts())
    assert list(found) == list(SLOTS)
    assert [c.name for c in found["rms_norm"]] == ["mine", REFERENCE]
    assert all(c[-1].name == REFERENCE for c in found.values())
    plugins = installed(offer("norm", "m:f"))
    mine = choose_platform(plugins, "mine")
    with pytest.raises(SelectionError, match="unknown slot"):
        offered(mine, plugins, mine.facts())


def test_layouts_that_are_declared_and_not(offer) -> None:
    other = KVLayout("other", "htd", "htd")
    said = offer("attention", "m:f", lambda s, f: accept(1), layout=lambda s, f: other)
    assert declared_layout(said, None, None) == other
    assert declared_layout(offer("attention", Attention), None, None) == Attention.layout
    assert declared_layout(offer("attention", "m:f"), None, None) is None
