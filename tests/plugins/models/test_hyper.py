"""Residual streams: how they mix, what blocks take of them, and who cannot divide them."""

import pytest
import torch

from hotshoe.errors import ConfigError
from hotshoe.types.mesh import Axis
from hotshoe_models.hyper import doubly_stochastic, joined


def test_rows_and_columns_of_mixing_matrices_sum_to_one():
    made = doubly_stochastic(torch.randn(50, 4, 4), 20, 1e-6)
    for axis in (1, 2):
        torch.testing.assert_close(made.sum(axis), torch.ones(50, 4), rtol=1e-3, atol=1e-3)


def test_a_block_joins_every_stream_and_streams_mix():
    streams, out = torch.randn(5, 3, 8), torch.randn(5, 8)
    post, mix = torch.rand(5, 3), torch.rand(5, 3, 3)
    found = joined(streams, out, post, mix)
    for j in range(3):
        mixed = sum(mix[:, i, j, None] * streams[:, i] for i in range(3))
        torch.testing.assert_close(found[:, j], mixed + post[:, j, None] * out)


def test_ids_go_with_embeddings_in_every_type(variants, checkpoints, stepper_class):
    model = stepper_class(checkpoints.get(variants["deepseek-v4"]).path, 64).model
    ids = torch.arange(256, dtype=torch.int32)
    digits = model.embed(ids)[:, model.hidden_size :].bfloat16()
    assert torch.equal((digits.long() * model._powers(ids)).sum(1), ids.long())
    assert model._powers(ids).tolist() == [1, 256, 65536]


def test_stages_do_not_divide_it(variants, checkpoints, stepper_class):
    path = checkpoints.get(variants["deepseek-v4"]).path
    with pytest.raises(ConfigError, match="pipeline-parallel-size of 1"):
        stepper_class(path, 64, stage=Axis(0, 2))
