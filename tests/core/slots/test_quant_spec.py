"""Forms of quantized numbers in words."""

import pytest

from hotshoe.slots import QuantSpec


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (QuantSpec("int8", "channel"), "int8 by channel"),
        (QuantSpec("int4", "group", 32, symmetric=False), "int4 by group of 32 with zero points"),
        (QuantSpec("fp8_e4m3", "block", block_shape=(128, 64)), "fp8_e4m3 by block of 128x64"),
    ],
)
def test_forms_in_words(form: QuantSpec, words: str) -> None:
    assert str(form) == f"{form}" == words
