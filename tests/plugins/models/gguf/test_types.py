"""Numbers of types are those of the format's own package."""

import gguf

from hotshoe_models.gguf.types import OTHERS, TYPES


def test_numbers_and_sizes() -> None:
    newer = {42: ("Q2_0", 64, 18)}  # ggml has it, and this release of the package lacks it
    assert {number: tuple(TYPES[number]) for number in newer} == newer
    for number, kind in TYPES.items():
        if number in newer:
            continue
        known = gguf.GGMLQuantizationType(number)
        assert known.name == kind.name
        assert gguf.GGML_QUANT_SIZES[known] == (kind.values, kind.nbytes)


def test_the_others_are_named() -> None:
    known = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    assert {number: known[number] for number in OTHERS} == OTHERS
    assert set(known) <= set(TYPES) | set(OTHERS)
