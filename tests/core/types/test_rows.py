"""What a row holds, and how many bytes that takes."""

import pytest

from hotshoe.types.cache import CacheSpec
from hotshoe.types.rows import RowForm, row_form

#: DeepSeek's latents and rotated key.
FP8 = RowForm(512, 64, "bfloat16", "float8_e4m3fn")


@pytest.mark.parametrize(
    ("form", "width", "nbytes"),
    [
        (RowForm(512, 64, "bfloat16", "bfloat16"), 576, 1152),
        (RowForm(512, 64, "bfloat16", "float32"), 576, 2304),
        (FP8, 656, 656),
        (RowForm(512, 64, "float32", "int8"), 784, 784),
        (RowForm(128, 0, "bfloat16", "float8_e5m2"), 144, 144),
    ],
)
def test_bytes_of_a_row_and_of_a_block(form, width, nbytes):
    assert (form.width, form.nbytes, form.refusal) == (width, nbytes, "")
    spec = CacheSpec("latent", 64, form.parts("latent", 64))
    assert spec.block_bytes == 64 * nbytes
    found = row_form(spec)
    assert (found.channels, found.kv_dtype) == (form.channels, form.kv_dtype)
    assert not form.quantized or (found.numbers, found.exact) == (form.numbers, form.exact)


@pytest.mark.parametrize("sizes", [(24, 64), (512, 20)])
def test_parts_that_copies_cannot_move_are_refused(sizes):
    assert "multiples of 16 bytes" in RowForm(*sizes, "bfloat16", "int8").refusal
    assert not RowForm(*sizes, "bfloat16", "bfloat16").refusal
