"""The records of slots say all that core knows of them, and plugins bring records of their own."""

import dataclasses

import pytest

from hotshoe.errors import PluginError, SelectionError
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint
from hotshoe.slots import (
    SLOTS,
    Candidate,
    EmbeddingSpec,
    GatedMlpSpec,
    LinearSpec,
    NormSpec,
    Selector,
    Slot,
    accept,
    all_slots,
)

FACTS = DeviceFacts("null", "cpu", "nothing", "none", 1 << 30, 1)


@dataclasses.dataclass(frozen=True)
class HalveSpec:
    """y = x / 2."""

    size: int


HALVE = Slot("halve", HalveSpec, "test:build", "half of everything", step_bytes=lambda s, n: 8)


def manager(**slots: object) -> PluginManager:
    class Plugin:
        HOTSHOE_HOOK_API = HOOK_API

        @staticmethod
        @hookimpl
        def hotshoe_slots() -> dict[str, object]:
            return slots

    return PluginManager([EntryPoint("extra", "extra-package", "1", lambda: Plugin)])


def test_every_use_has_weights_of_its_own() -> None:
    first, second = LinearSpec(4, 6, "float32"), LinearSpec(3, 4, "float32")
    selector = Selector(SLOTS, (), FACTS)
    selector.uses.update(
        {
            ("linear", first): 2,
            ("gated_mlp", GatedMlpSpec(first, second, "silu")): 3,
            ("embedding", EmbeddingSpec(10, 4, "bfloat16")): 1,
            ("rms_norm", NormSpec(4, 1e-6, "float32")): 9,
        }
    )
    assert selector.matrix_bytes() == 4 * (2 * 24 + 3 * (24 + 12))
    assert selector.table_bytes() == 80


def test_every_record_is_whole() -> None:
    for name, slot in SLOTS.items():
        assert slot.name == name and slot.doc
        assert dataclasses.is_dataclass(slot.spec_type)
        assert resolve_lazy(slot.reference)
        assert 1 <= slot.contract <= HOOK_API
        assert set(slot.composed_of) <= set(SLOTS)


def test_a_plugin_brings_a_slot() -> None:
    found = all_slots(manager(halve=HALVE))
    assert list(found) == [*SLOTS, "halve"]
    pack = Candidate("halve", "quick", lambda s, f: accept(5), lambda s, f: lambda x: x / 2)
    selector = Selector(found, [pack], FACTS)
    assert selector.choose("halve", HalveSpec(4))(6.0) == 3.0
    assert selector.uses == {("halve", HalveSpec(4)): 1}


@pytest.mark.parametrize(
    ("name", "brought", "words"),
    [
        ("linear", HALVE, "plugin extra brings slot linear, which core has"),
        ("third", HALVE, "plugin extra brings .*, which is no Slot named third"),
        ("third", 3, "plugin extra brings 3, which is no Slot named third"),
        ("third", "no_such_module:SLOT", "plugin extra .*no_such_module"),
    ],
)
def test_what_is_no_slot_of_its_own_is_named(name: str, brought: object, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        all_slots(manager(**{name: brought}))


@pytest.mark.parametrize(("built_for", "served"), [(1, False), (2, True), (None, True)])
def test_a_candidate_that_knows_an_older_contract_is_refused_by_name(
    built_for: int | None, served: bool
) -> None:
    slots = {"halve": dataclasses.replace(HALVE, reference="fractions:Fraction", contract=2)}
    old = Candidate(
        "halve", "old", lambda s, f: accept(5), lambda s, f: "built", hook_api=built_for
    )
    selector = Selector(slots, [old], FACTS)
    decision = selector.decide("halve", HalveSpec(4))
    assert (decision.chosen == "old") == served
    if not served:
        [(name, verdict)] = decision.others
        assert (name, verdict.score, verdict.defect) == ("old", None, False)
        assert "built for hook API 1, but slot halve changed with 2" in verdict.reason


def test_an_operation_that_lacks_a_method_is_its_candidates_defect() -> None:
    """Else the layer or the model that first asks for it would be blamed."""
    bare = Candidate("linear", "bare", lambda s, f: accept(9), lambda s, f: lambda x: x)
    spec = LinearSpec(4, 6, "float32")
    selector = Selector(SLOTS, [bare], FACTS)
    assert selector.choose("linear", spec).nbytes() == 0
    verdict = dict(selector.decide("linear", spec).others)["bare"]
    assert verdict.defect
    assert "its operation has no load and no nbytes" in verdict.reason
    forced = Selector(SLOTS, [bare], FACTS, forced={"linear": "bare"})
    with pytest.raises(SelectionError, match=r"candidate bare: .* has no load and no nbytes"):
        forced.choose("linear", spec)
