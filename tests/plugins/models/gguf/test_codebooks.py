"""Codebooks are those of the format's own package."""

import gguf
import numpy as np
import pytest

from hotshoe_models.gguf.codebooks import CODEBOOKS, points_of, signs_of


@pytest.mark.parametrize("name", CODEBOOKS)
def test_points(name: str) -> None:
    known = getattr(gguf.quants, name)
    known.init_grid()
    points = known.grid.reshape(known.grid_shape)
    scale, less = {"IQ3_XXS": (2, 0), "IQ1_S": (1, 1)}.get(name, (1, 0))
    np.testing.assert_array_equal(scale * points_of(name).numpy() - less, points)


def test_signs() -> None:
    eight = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    np.testing.assert_array_equal(signs_of(8).numpy(), 1 - 2 * eight.astype(np.int8))
    codes = np.frombuffer(gguf.quants.IQ2_XXS.ksigns, np.uint8)
    np.testing.assert_array_equal(signs_of(7).numpy(), signs_of(8).numpy()[codes])
