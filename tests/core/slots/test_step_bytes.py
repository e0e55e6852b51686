"""What a step reads of what slots keep, counted by hand."""

from dataclasses import replace

from hotshoe.slots import AttentionSpec, RgLruSpec, SelectiveScanSpec, ShortConvSpec
from hotshoe.slots.step_bytes import attended_bytes, conv_bytes, state_bytes

TYPES = ("bfloat16", "bfloat16", "float32", 16)


def test_states_are_those_of_all_channels() -> None:
    recurrent = RgLruSpec(48, 3, 4, *TYPES)
    assert state_bytes(recurrent, 1) == 48 * 4 + 3 * 48 * 2
    assert state_bytes(SelectiveScanSpec(48, 8, 5, 2, *TYPES), 8) == 48 * 8 * 4 + 48 * 2
    assert conv_bytes(replace(recurrent, conv_dtype="float32", conv_width=2)) == 48 * 4
    assert conv_bytes(ShortConvSpec(48, 3, "bfloat16", "bfloat16", 16)) == 2 * 48 * 2


def test_a_query_sees_its_window() -> None:
    spec = AttentionSpec(8, 2, 64, 0.125, "bfloat16", "bfloat16", 16)
    row = 2 * 2 * 64 * 2
    assert attended_bytes(spec, 100) == 100 * row
    windowed = replace(spec, window=24)
    assert [attended_bytes(windowed, n) for n in (10, 100)] == [10 * row, 24 * row]
    narrow = replace(spec, kv_dtype="int8")
    assert attended_bytes(narrow, 10) == 10 * row // 2
