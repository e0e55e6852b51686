"""Checkpoints of BitNet: packed, in plain numbers, to be quantized online, and broken ones."""

import pytest
import torch
from tests.plugins.quantization.test_hqq import Source
from tests.plugins.quantization.writers import ternary

from hotshoe.errors import CheckpointError
from hotshoe_quantization.bitnet import read

LAYER = "model.layers.0.mlp.up_proj"
AUTO = {"quant_method": "bitnet", "linear_class": "autobitlinear"}
ONLINE = {**AUTO, "quantization_mode": "online"}


def decoded(config, parts):
    plain = {"model.norm.weight": torch.ones(64), "lm_head.weight": torch.randn(8, 64)}
    source = Source(plain | {f"{LAYER}.{name}": tensor for name, tensor in parts.items()})
    return read(config).decode(source), source


@pytest.mark.parametrize("inverse", [True, False])
def test_packed_values_come_back(inverse):
    parts, dense = ternary(inverse)(torch.randn(8, 64))
    found, source = decoded({"quant_method": "bitnet"} if inverse else AUTO, parts)
    weight, scale = (found.tensor(f"{LAYER}.{name}") for name in ("weight", "weight_scale"))
    assert weight.dtype == torch.int8
    torch.testing.assert_close(weight * scale, dense)
    assert found.tensor("lm_head.weight") is source["lm_head.weight"]


def test_plain_numbers_are_quantized_online():
    plain = torch.randn(8, 64)
    found, source = decoded(ONLINE, {"weight": plain})
    names = [name for name in found.names() if name.startswith(LAYER)]
    assert names == [f"{LAYER}.weight_scale", f"{LAYER}.weight"]
    scale = found.tensor(names[0])
    found.taken(names[0])
    weight = found.tensor(names[1])
    found.taken(names[1])
    assert f"{LAYER}.weight" not in source
    torch.testing.assert_close(weight * scale, ternary(False)(plain)[1])


def test_values_without_packing():
    values = torch.randint(-1, 2, (8, 64)).bfloat16()
    found, _ = decoded(AUTO, {"weight": values, "weight_scale": torch.ones(1)})
    assert torch.equal(found.tensor(f"{LAYER}.weight"), values.to(torch.int8))
    found, _ = decoded(AUTO, {"weight": 2 * values, "weight_scale": torch.ones(1)})
    with pytest.raises(CheckpointError, match="values beside -1, 0 and 1"):
        found.tensor(f"{LAYER}.weight")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"linear_class": "other"}, "linear_class is read as bitlinear or autobitlinear"),
        ({"quantization_mode": "online"}, "quantization_mode must be offline"),
        ({"use_rms_norm": True}, "use_rms_norm must be false"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert must be a list"),
    ],
)
def test_other_forms_are_refused(values, words):
    with pytest.raises(CheckpointError, match=words):
        read({"quant_method": "bitnet", **values})
