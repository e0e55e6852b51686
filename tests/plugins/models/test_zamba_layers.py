"""Zamba's layers: stages that cannot divide them, and transformers whose weights are there once."""

import pytest

from hotshoe.errors import ConfigError
from hotshoe.types.mesh import Axis


def test_stages_do_not_divide_them(variants, checkpoints, stepper_class):
    path = checkpoints.get(variants["zamba2"]).path
    with pytest.raises(ConfigError, match=r"--pipeline-parallel-size of 1"):
        stepper_class(path, 64, stage=Axis(0, 2))


def test_a_transformer_is_there_once(variants, checkpoints, stepper_class):
    stepper = stepper_class(checkpoints.get(variants["zamba2-two-blocks"]).path, 64)
    names = [n for n in stepper.ctx.weights.expected if n.endswith("self_attn.o_proj.weight")]
    assert names == [f"model.layers.{i}.shared_transformer.self_attn.o_proj.weight" for i in (0, 1)]
