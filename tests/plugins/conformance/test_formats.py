"""Formats end to end: scales that are wrong show, whoever multiplies."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from hotshoe.layers import OnlineFormat, Storage
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint
from hotshoe.slots import REFERENCE, SLOTS, Candidate, QuantSpec, accept
from hotshoe.slots.reference.accepts import supports
from hotshoe.slots.reference.linear import Linear, quantize_weight
from hotshoe_conformance import formats
from hotshoe_conformance.cases.base import HOST
from hotshoe_conformance.formats import Example, difference, format_timings, prove_formats

QUANT = QuantSpec("int4", "group", group_size=64)
REF = Candidate("linear", REFERENCE, SLOTS["linear"].reference_supports, SLOTS["linear"].reference)


class Mine(OnlineFormat):
    """Four bits by group, quantized here; the scales may be another's."""

    factor = 1.0

    def __init__(self, quant: QuantSpec = QUANT) -> None:
        super().__init__(Storage(quant))

    def canonical(self, layer, tensors):
        made = [quantize_weight(part, QUANT) for part in tensors["weight"]]
        return {
            "weight": [values for values, _ in made],
            "weight_scale": [scale * self.factor for _, scale in made],
        }


class Large(Mine):
    factor = 3.0


class Failing(Mine):
    def tensors(self, layer, shape, share):
        raise KeyError("no such layer")


def other_form() -> Mine:
    return Mine(QuantSpec("int3", "group", group_size=64))


class Stored(OnlineFormat):
    """A checkpoint of numbers times two."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(Storage(QuantSpec("int8", "channel")))
        self.factor = config["factor"]

    def canonical(self, layer, tensors):
        weight = [part.round().to(torch.int8) for part in tensors["weight"]]
        return {"weight": weight, "weight_scale": [torch.full((len(w),), 1.0) for w in weight]}


def examples(source: torch.Generator):
    for factor in (1.0, 1.25):
        held = torch.randint(-9, 9, (8, 16), generator=source).float()
        yield Example({"factor": factor}, {"weight": held}, held * factor)


def plugins(methods: Mapping[str, Any], stored: Mapping[str, Any] | None = None) -> PluginManager:
    class Plugin:
        HOTSHOE_HOOK_API = HOOK_API

        @hookimpl
        def hotshoe_quantizations(self):
            return methods

        @hookimpl
        def hotshoe_weight_formats(self):
            return stored or {}

        @hookimpl
        def hotshoe_format_examples(self):
            return {"mine": examples} if stored else {}

    return PluginManager([EntryPoint("mine", "tests", "0", Plugin)])


def proved(methods, candidates: Sequence[Candidate] = (REF,), **stored):
    report = prove_formats(plugins(methods, **stored), candidates, HOST, seed=7)
    return report.outcomes, [defect.what for defect in report.defects]


def test_a_format_that_is_right() -> None:
    named = Candidate("linear", "mine", supports, Linear)
    outcomes, defects = proved({"four": Mine}, [named, REF])
    assert outcomes == {"--quantization four": "passed: reference, mine"}
    assert defects == []


def test_scales_three_times_too_large() -> None:
    outcomes, [defect] = proved({"four": Large})
    assert outcomes == {"--quantization four": "wrong"}
    assert defect.startswith("--quantization four: products are ")
    assert "times as large as those of the plain numbers" in defect
    assert "candidate reference" in defect


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda spec, facts: len, "it raises AttributeError"),
        (
            type(
                "Half",
                (Linear,),
                {"__call__": lambda s, x: s.__class__.__base__.__call__(s, x)[:, ::2]},
            ),
            "it returned [7, 48], not [7, 96]",
        ),
    ],
)
def test_who_multiplies_is_named(build, said: str) -> None:
    named = Candidate("linear", "mine", lambda s, f: accept(1), build)
    _, [defect] = proved({"four": Mine}, [named, REF])
    assert said in defect
    assert "multiplied by candidate mine of slot linear" in defect


def test_a_format_that_is_too_late() -> None:
    late = [True, False]
    report = prove_formats(
        plugins({"four": Mine, "large": Large}), [REF], HOST, 7, lambda what: late.pop(0)
    )
    assert report.outcomes == {
        "--quantization four": "not run: no time was left",
        "--quantization large": "wrong",
    }


def test_formats_that_cannot_be_run() -> None:
    outcomes, [defect] = proved({"failing": Failing, "other": other_form}, stored={"far": Stored})
    assert outcomes["--quantization failing"] == "wrong"
    assert defect == "--quantization failing: KeyError: 'no such layer'"
    assert outcomes["--quantization other"].startswith("not run: no candidate of slot linear")
    assert outcomes["quant_method far"] == "not run: its plugin has no example of it"


def test_examples_of_stored_formats_are_exact() -> None:
    outcomes, [defect] = proved({}, stored={"mine": Stored})
    assert outcomes == {"quant_method mine": "wrong"}
    assert "products are 0.8 times as large" in defect


def test_products_that_are_off() -> None:
    want = torch.eye(4).double()
    assert difference(want, want, 0.03) == ""
    assert "off by" in difference(want + want.roll(1, 0), want, 0.5)
    assert "nan times" in difference(want * torch.nan, want, 0.5)


def test_own_forms_are_timed(monkeypatch) -> None:
    monkeypatch.setattr(formats, "TIMED_SHAPE", (64, 128))
    [timing] = format_timings(plugins({"four": Mine, "failing": Failing}), REF, HOST, seed=1)
    assert timing.shape == "--quantization four"
    assert timing.seconds > 0
    assert timing.bytes > 64 * 128 // 2
