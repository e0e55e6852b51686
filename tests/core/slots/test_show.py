"""Specifications as text, without what goes without saying."""

from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.show import show_spec


def test_records_within_specifications() -> None:
    spec = LinearSpec(8, 4, "float32", weight=QuantSpec("int8", "channel", online=True))
    assert show_spec(spec) == (
        "in_features=8 out_features=4 dtype=float32 "
        "weight=(format=int8 granularity=channel online=True)"
    )
