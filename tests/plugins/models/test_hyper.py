"""Decoders with residual streams: ids that go with embeddings, stages, and CPU kernels."""

import pytest
import torch

from hotshoe.config import EngineConfig
from hotshoe.engine.explain.explanation import explain
from hotshoe.errors import ConfigError
from hotshoe.types.mesh import Axis
from hotshoe_models.hyper import of_digits


def test_ids_go_with_embeddings_in_every_type(variants, checkpoints, stepper_class):
    model = stepper_class(checkpoints.get(variants["deepseek-v4"]).path, 64).model
    ids = torch.arange(256, dtype=torch.int32)
    digits = model.embed(ids)[:, model.hidden_size :].bfloat16()
    assert torch.equal(of_digits(digits), ids.long())
    assert of_digits(torch.eye(3)).tolist() == [1, 256, 65536]


def test_stages_do_not_divide_it(variants, checkpoints, stepper_class):
    path = checkpoints.get(variants["deepseek-v4"]).path
    with pytest.raises(ConfigError, match="pipeline-parallel-size of 1"):
        stepper_class(path, 64, stage=Axis(0, 2))


@pytest.mark.parametrize("name", ["deepseek-v4", "glm5-next", "hy4", "minimax-m3", "phi-moe"])
def test_processors_have_kernels(variants, checkpoints, name):
    """Of streams, entries, sinks beside choices, choices of blocks, and routers."""
    path = str(checkpoints.get(variants[name]).path)
    native = {"platform": "cpu", "require_native": True, "dtype": "bfloat16"}
    found = explain(EngineConfig(path, block_size=16, **native))
    assert found.decisions and all(decision.native for decision in found.decisions)
