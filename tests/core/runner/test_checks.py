"""Whoever returns something else than its slot says is named, once, and before any request."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotshoe import LLM, SamplingParams
from hotshoe.errors import EngineError
from hotshoe.platform import DeviceFacts
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint, installed_entry_points
from hotshoe.runner.checks import ResultChecks, _Checked, held_bytes
from hotshoe.slots import SLOTS, Candidate, NormSpec, Selector, accept
from hotshoe.slots.reference.norm import build_norm
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import HOST, cases
from hotshoe_conformance.host import Host
from hotshoe_conformance.place import Place

FACTS = DeviceFacts("mine", "cpu", "a test's device", "any", 1 << 30, 1)
SPEC = NormSpec(8, 1e-6, "float32")
CHECKED = sorted(name for name, slot in SLOTS.items() if slot.results is not None)
NAMED = r"candidate wrong of slot rms_norm \(tests 0\) returned "


class Layer:
    """Holds an operation as layers do, and another one in a closure."""

    def __init__(self, op: Callable[..., Any], inner: object = None) -> None:
        self.op = op
        self.parts = [inner]
        self.run = lambda: inner


def selector(build: Any) -> Selector:
    candidate = Candidate("rms_norm", "wrong", lambda s, f: accept(9), build, package="tests 0")
    return Selector(SLOTS, [candidate], FACTS)


def norm_of(build: Any) -> tuple[Selector, Layer]:
    chosen = selector(build)
    return chosen, Layer(chosen.choose("rms_norm", SPEC))


def call(layer: Layer) -> Any:
    return layer.op(torch.ones(3, 8), torch.ones(8))


@pytest.mark.parametrize("slot", CHECKED)
def test_references_return_what_records_say(slot: str) -> None:
    """So records are right, and calls of every case can be judged."""
    suite, count = SUITES[slot], 0
    for case in cases(suite, (), 1, range(len(suite.grid(())) + 4)):
        if not case.setup.quick or case.setup.bytes:
            continue
        chosen = Selector(SLOTS, (), HOST)
        if chosen.decide(slot, case.setup.spec).chosen == "composed":
            chosen = Selector(SLOTS, (), HOST, forced={slot: "reference"})
        layer, checks = Layer(chosen.choose(slot, case.setup.spec)), ResultChecks(chosen, False)
        with checks.over(layer):
            assert isinstance(layer.op, _Checked)
            case.problem(suite).call(layer.op, Place(HOST.device))
        count += 1
    assert count


WRONG = [
    (lambda x, w: x[:, :4], r"\[3, 4\] float32, not \[3, 8\] float32, for NormSpec"),
    (lambda x, w: x.double(), r"\[3, 8\] float64, not \[3, 8\] float32"),
    (lambda x, w: None, r"None, not \[3, 8\] float32"),
    (lambda x, w: (x, x[:, 0]), r"\[3, 8\] float32 and \[3\] float32, not \[3, 8\] float32"),
    (lambda x, w: x.tolist(), r"list, not \[3, 8\] float32"),
]


@pytest.mark.parametrize(("op", "said"), WRONG)
def test_what_does_not_fit_is_named_with_its_package(op: Callable[..., Any], said: str) -> None:
    chosen, layer = norm_of(lambda spec, facts: op)
    with (
        pytest.raises(EngineError, match=NAMED + said) as caught,
        ResultChecks(chosen, False).over(layer),
    ):
        call(layer)
    assert "--kernel rms_norm=reference does without it" in str(caught.value)
    assert layer.op is op, "the operation is back, whatever happened"


def test_layers_hold_their_operations_again_wherever_these_are() -> None:
    class Block(nn.Module):
        def __init__(self, inner: object) -> None:
            super().__init__()
            self.inner = inner
            self.by_name = {"inner": inner}

    chosen = selector(build_norm)
    first, second = (chosen.choose("rms_norm", SPEC) for _ in range(2))
    block = Block(Layer(first, Layer(second, first)))
    inner = block.inner
    layers = [inner, inner.parts[0]]
    with ResultChecks(chosen, False).over(block):
        assert all(isinstance(layer.op, _Checked) for layer in layers)
        assert isinstance(layers[1].parts[0], _Checked)
        assert call(layers[0]).shape == (3, 8)
    assert [layer.op for layer in layers] == [first, second]
    assert layers[1].parts == [first]


def test_an_operation_of_two_specifications_has_to_fit_one() -> None:
    op = build_norm(SPEC, FACTS)
    chosen = selector(lambda spec, facts: op)
    for size in (8, 16):
        chosen.choose("rms_norm", NormSpec(size, 1e-6, "float32"))
    layer = Layer(op)
    with ResultChecks(chosen, False).over(layer):
        for size in (8, 16):
            layer.op(torch.ones(3, size), torch.ones(size))
        with pytest.raises(EngineError, match="candidate wrong"):
            layer.op(torch.ones(3, 4), torch.ones(4))


def test_attributes_of_an_operation_are_still_its_own() -> None:
    op = SimpleNamespace(takes_quantized=True)
    assert _Checked(op, lambda *_: None).takes_quantized


def test_the_first_that_made_nan_is_named_step_by_step() -> None:
    chosen, layer = norm_of(lambda spec, facts: lambda x, w: x * float("nan"))
    checks = ResultChecks(chosen, True)
    with checks.over(layer):
        pass
    assert isinstance(layer.op, _Checked), "checks stay"
    call(layer)
    said = "came from candidate wrong of slot rms_norm (tests 0), or from its weights"
    assert said in str(checks.remark())
    assert checks.remark() == "no operation returned NaN or infinity"
    with checks.over(layer):
        pass
    assert not isinstance(layer.op._operation, _Checked), "a second time adds nothing"


def installed(*candidates: Candidate) -> PluginManager:
    class Mine(Host):
        name = "mine"

        def facts(self) -> DeviceFacts:
            return FACTS

        def candidates(self) -> Sequence[Candidate]:
            return candidates

    class Plugin:
        HOTSHOE_HOOK_API = HOOK_API

        @hookimpl
        def hotshoe_platforms(self) -> dict[str, Any]:
            return {"mine": Mine}

    return PluginManager([*installed_entry_points(), EntryPoint("mine", "tests", "0", Plugin)])


def offer(slot: str, op: Callable[..., Any]) -> PluginManager:
    supports = lambda s, f: accept(9)  # noqa: E731
    return installed(Candidate(slot, "wrong", supports, lambda spec, facts: op))


@pytest.mark.parametrize(
    ("slot", "op"),
    [
        ("rms_norm", lambda x, w: x[:1]),
        ("embedding", lambda ids, table: table[ids.long()].double()),
        ("sample", lambda logits, *rest: logits.argmax(-1).int()),
    ],
)
def test_an_engine_does_not_start_with_one(slot: str, op: Callable[..., Any]) -> None:
    with pytest.raises(EngineError, match=rf"candidate wrong of slot {slot} \(tests 0\) returned"):
        LLM("demo", platform="mine", plugins=offer(slot, op))


def complaint(**options: Any) -> str:
    plugins = offer("rms_norm", lambda x, w: torch.full_like(x, float("nan")))
    with LLM("demo", platform="mine", plugins=plugins, **options) as llm:
        [output] = llm.generate("The", SamplingParams(max_tokens=2))
        return str(output.outputs[0].error)


def test_a_request_without_a_token_says_how_to_find_the_operation() -> None:
    said = complaint()
    assert "the logits hold NaN" in said
    assert "run again with --check-candidates" in said
    said = complaint(check_candidates=True)
    assert "first result with NaN or infinity came from candidate wrong of slot rms_norm" in said


class Forgetful:
    def __call__(self, x: Any, weight: Any) -> Any:
        return x

    def nbytes(self) -> Any:
        return None


def test_bytes_that_are_no_number_are_the_candidates() -> None:
    chosen = selector(lambda spec, facts: Forgetful())
    operation = chosen.choose("rms_norm", SPEC)
    with pytest.raises(EngineError, match=r"candidate wrong of .* says .* nbytes\(\) is None"):
        held_bytes(chosen, operation.nbytes)
    assert held_bytes(chosen, lambda: 3) == 3
    with pytest.raises(TypeError, match="not a number of bytes"):
        held_bytes(chosen, lambda: None)
