"""The embedding adapter against core's reference."""

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import EmbeddingSpec
from hotshoe.slots.reference.embedding import build
from hotshoe_cpu import embedding


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_matches_the_reference(
    facts: DeviceFacts, scale: float, ids_dtype: torch.dtype, rng: torch.Generator
) -> None:
    spec = EmbeddingSpec(50, 24, "bfloat16", scale)
    assert embedding.supports(spec, facts).accepted
    table = torch.randn(50, 24, generator=rng).bfloat16()
    ids = torch.randint(0, 50, (11,), generator=rng, dtype=ids_dtype)
    actual = embedding.Embedding(spec, facts)(ids, table)
    torch.testing.assert_close(actual, build(spec, facts)(ids, table), rtol=0, atol=0)


def test_a_stray_id_is_an_error(facts: DeviceFacts) -> None:
    operation = embedding.Embedding(EmbeddingSpec(50, 24, "float32"), facts)
    with pytest.raises(IndexError, match="token id 50"):
        operation(torch.tensor([50], dtype=torch.int32), torch.zeros(50, 24))
