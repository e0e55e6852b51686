"""Embedding gather against core's reference."""

import pytest
import torch
from tests.platforms.triton.conftest import far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots import EmbeddingSpec
from hotshoe.slots.reference import embedding as plain
from hotshoe_triton import embedding


@pytest.mark.parametrize("scale", [1.0, 11.3125])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_matches_the_reference(
    facts: DeviceFacts, scale: float, ids_dtype: torch.dtype, rng: torch.Generator
) -> None:
    spec = EmbeddingSpec(30, 100, "bfloat16", scale)
    assert embedding.supports(spec, facts).accepted
    table = torch.randn(30, 112, generator=rng, device=facts.device).to(torch.bfloat16)[:, :100]
    ids = torch.tensor([29, 0, 7, 7], device=facts.device, dtype=ids_dtype)
    actual = embedding.Embedding(spec, facts)(ids, table)
    assert torch.equal(actual, plain.build(spec, facts)(ids, table))
    assert actual.is_contiguous()


def test_rows_wider_than_a_block(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = EmbeddingSpec(3, 2500, "float32")
    table = torch.randn(3, 2500, generator=rng, device=facts.device)
    ids = torch.tensor([2, 1], device=facts.device)
    assert torch.equal(embedding.Embedding(spec, facts)(ids, table), table[[2, 1]])


def test_rows_far_apart_need_64_bits(facts: DeviceFacts, rng: torch.Generator) -> None:
    table = torch.randn(3, 64, generator=rng, device=facts.device).to(torch.bfloat16)
    ids = torch.tensor([2, 1], device=facts.device, dtype=torch.int32)
    operation = embedding.Embedding(EmbeddingSpec(3, 64, "bfloat16"), facts)
    assert torch.equal(operation(ids, far_apart(table)), table[[2, 1]])


def test_empty_batch(facts: DeviceFacts) -> None:
    spec = EmbeddingSpec(3, 64, "float32")
    ids = torch.empty(0, dtype=torch.int32, device=facts.device)
    table = torch.zeros(3, 64, device=facts.device)
    assert embedding.Embedding(spec, facts)(ids, table).shape == (0, 64)
