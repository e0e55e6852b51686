"""Specifications and verdicts as text, without what goes without saying."""

from dataclasses import dataclass

import pytest

from hotshoe.slots import GatedMlpSpec, LinearSpec, QuantSpec, Verdict, accept, refuse
from hotshoe.slots.show import short_spec, show_spec, show_verdict, words_of


def test_records_within_specifications() -> None:
    spec = LinearSpec(8, 4, "float32", weight=QuantSpec("int8", "channel", online=True))
    assert show_spec(spec) == (
        "in_features=8 out_features=4 dtype=float32 "
        "weight=(format=int8 granularity=channel online=True)"
    )


def test_fields_with_records_within_records() -> None:
    weight = QuantSpec("int8", "channel", online=True)
    inner = LinearSpec(8, 4, "float32", weight=weight)
    text = show_spec(GatedMlpSpec(inner, LinearSpec(2, 8, "float32"), "silu"))
    assert words_of(text) == [
        f"gate_up=({show_spec(inner)})",
        "down=(in_features=2 out_features=8 dtype=float32)",
        "activation=silu",
    ]
    assert words_of("") == []


@dataclass(frozen=True)
class Stack:
    layers: tuple[tuple[GatedMlpSpec, int], ...]
    sizes: tuple[int, ...] = ()


def test_records_of_a_long_specification_are_left_out() -> None:
    weight = QuantSpec("int8", "channel", online=True)
    linear = LinearSpec(8, 4, "float32", weight=weight)
    stack = Stack(((GatedMlpSpec(linear, linear, "silu"), 9),), (1, 2))
    assert words_of(show_spec(stack)) == [
        f"layers=((({show_spec(stack.layers[0][0])}) 9))",
        "sizes=(1, 2)",
    ]
    assert short_spec(stack) == "layers=(((...) 9)) sizes=(1, 2)"
    assert short_spec(linear) == show_spec(linear)


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (accept(3), "score 3"),
        (accept(3, "fast"), "score 3: fast"),
        (refuse("too narrow"), "refused: too narrow"),
        (Verdict(None, "it raised", defect=True), "defective: it raised"),
    ],
)
def test_verdicts(verdict: Verdict, text: str) -> None:
    assert show_verdict(verdict) == text
