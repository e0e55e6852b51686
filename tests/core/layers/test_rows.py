"""A cache of one row for each token: its memory, shared and given back."""

import pytest
import torch

from hotshoe.layers.rows import RowLayer
from hotshoe.types.rows import RowForm


@pytest.mark.parametrize(("kind", "dtype"), [("latent", "float32"), ("index", "bfloat16")])
def test_memory_is_taken_shared_and_given_back(kind, dtype):
    row = RowForm(6, 0, dtype, dtype)
    first, second = (RowLayer(kind, 4, row, "cpu") for _ in range(2))
    assert first.cache_spec == second.cache_spec and first.cache_spec.kind == kind
    first.allocate_cache(3)
    assert first.cache.shape == (3, 4, 6) and first.cache.dtype == getattr(torch, dtype)
    assert first.cache.nbytes == 3 * first.cache_spec.block_bytes and not first.cache[-1].any()
    second.share_cache(first)
    assert second.cache is first.cache
    remembered = first.cache
    first.free_cache()
    assert remembered.untyped_storage().nbytes() == 0 and not hasattr(first, "cache")


def test_rows_of_eight_bits_are_bytes():
    layer = RowLayer("latent", 4, RowForm(32, 8, "bfloat16", "float8_e4m3fn"), "cpu")
    layer.allocate_cache(3)
    assert layer.cache.shape == (3, 4, 32 + 16 + 16) and layer.cache.dtype == torch.uint8
    assert layer.cache.nbytes == 3 * layer.cache_spec.block_bytes
    assert [part.name for part in layer.cache_spec.parts] == ["latent", "scale", "exact"]
