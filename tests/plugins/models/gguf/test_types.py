"""Numbers of types are those of the format's own package."""

import gguf

from hotshoe_models.gguf.types import OTHERS, TYPES


def test_numbers_and_sizes() -> None:
    for number, kind in TYPES.items():
        known = gguf.GGMLQuantizationType(number)
        assert known.name == kind.name
        assert gguf.GGML_QUANT_SIZES[known] == (kind.values, kind.nbytes)


def test_the_others_are_named() -> None:
    known = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    newer = {42: "Q2_0"}
    assert {number: (newer | known)[number] for number in OTHERS} == OTHERS
    assert set(known) <= set(TYPES) | set(OTHERS)
