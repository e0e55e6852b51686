"""The cases of packed_attention find whoever sees too much or too little, or overlooks a field."""

from dataclasses import replace

import pytest

from hotshoe.slots.reference.packed import PackedAttention


def test_the_reference_passes(defects) -> None:
    assert defects("packed_attention", PackedAttention) == []


@pytest.mark.parametrize(
    "fields",
    [{"scale": 32**-0.5}, {"window": None}, {"bias_span": None}],
    ids=lambda f: next(iter(f)),
)
def test_overlooked_fields(finds, blind, fields) -> None:
    assert finds("packed_attention", blind("packed_attention", **fields))


class Together(PackedAttention):
    def prepare(self, shape, num_keys=None):
        found = super().prepare(shape, num_keys)
        return [(0, found[-1][2], found[-1][2])]


class Unlimited(PackedAttention):
    def prepare(self, shape, num_keys=None):
        return super().prepare(shape)


class Mirrored(PackedAttention):
    def __call__(self, *args):
        *others, bias = args
        return super().__call__(*others, None if bias is None else bias.flip(1))


class Unturned(PackedAttention):
    def __call__(self, qkv, positions, cos_sin, prepared, bias=None):
        return super().__call__(qkv, positions, None, prepared, bias)


class Narrow(PackedAttention):
    def __init__(self, spec, facts):
        window = spec.window and spec.window - 1
        super().__init__(replace(spec, window=window), facts)


@pytest.mark.parametrize("build", [Together, Unturned, Narrow, Unlimited, Mirrored])
def test_other_attention(finds, build) -> None:
    assert finds("packed_attention", build)
