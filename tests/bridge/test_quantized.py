"""Configurations and methods that engines get, with the least of an engine's classes."""

import pytest
import torch
from torch import nn

from hotshoe.errors import CheckpointError
from hotshoe_bridge.operations import Operations
from hotshoe_bridge.quantized import Host, config_class
from hotshoe_quantization import examples


class Base:
    def __init__(self) -> None:
        self.packed_modules_mapping = {}


class Plain:
    """A method that makes a weight."""


HOST = Host(Base, nn.Linear, Plain, object, lambda made, layer, prefix: ("experts", prefix))


@pytest.fixture(scope="module")
def cpu() -> Operations:
    return Operations("cpu")


@torch.inference_mode()
def test_a_stored_layer_takes_what_the_loader_brings(cpu) -> None:
    """Matrices of q, k and v, by the names of the checkpoint and the parts of the loader."""
    source = torch.Generator().manual_seed(int(torch.randint(1 << 30, ())))
    parts = [next(examples.gptq(source)) for _ in range(3)]
    config = config_class(HOST, "hotshoe", "", cpu).from_config(dict(parts[0].config))
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    rows, columns = parts[0].weight.shape
    method = config.get_quant_method(nn.Linear(1, 1), "model.0.qkv_proj")
    layer = nn.Module()
    sizes = columns, [rows] * 3, columns, 3 * rows
    method.create_weights(layer, *sizes, torch.float32, weight_loader=None)
    held = dict(layer.named_parameters())
    assert set(held) == {"qweight", "qzeros", "scales", "g_idx"}
    for part, example in zip("qkv", parts, strict=True):
        for kind, tensor in example.tensors.items():
            held[kind].weight_loader(held[kind], tensor, part)
    method.process_weights_after_loading(layer)
    x, bias = torch.randn(5, columns), torch.randn(3 * rows)
    want = x @ torch.cat([example.weight for example in parts]).T + bias
    assert ((method.apply(layer, x, bias) - want).norm() / want.norm()) < 0.02


@pytest.mark.parametrize(
    ("config", "kind", "good", "bad"),
    [
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False},
            "g_idx",
            torch.arange(256, dtype=torch.int32) // 64,
            torch.arange(256, dtype=torch.int32) % 4,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "int-quantized",
                "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 8}}},
            },
            "weight_zero_point",
            torch.zeros(96, 1, dtype=torch.int8),
            torch.full((96, 1), 3, dtype=torch.int8),
        ),
    ],
)
def test_contradictions_are_met_where_a_tensor_comes(cpu, config, kind, good, bad) -> None:
    """Nothing needs such a tensor, as long as it says nothing else than the configuration."""
    config = config_class(HOST, "hotshoe", "", cpu).from_config(config)
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    method = config.get_quant_method(nn.Linear(1, 1), "model.0.qkv_proj")
    layer = nn.Module()
    method.create_weights(layer, 256, [96] * 3, 256, 288, torch.float32)
    held = dict(layer.named_parameters())[kind]
    held.weight_loader(held, good, "q")
    with pytest.raises(CheckpointError, match=rf"model\.0\.v_proj\.{kind} .*quantization_config"):
        held.weight_loader(held, bad, "v")


def test_who_reads_a_quantized_checkpoint(cpu) -> None:
    """The one method that the user names; those that quantize at load do not."""
    plain, eight = (config_class(HOST, *names, cpu) for names in (("hotshoe", ""), ("h8", "int8")))
    assert plain.override_quantization_method({"quant_method": "awq"}, "hotshoe") == "hotshoe"
    assert plain.override_quantization_method({"quant_method": "awq"}, None) is None
    assert eight.override_quantization_method({"quant_method": "awq"}, "h8") is None
    assert plain().get_quant_method(nn.Module(), "model.experts") == ("experts", "model.experts")
    assert torch.float32 in plain().get_supported_act_dtypes()
    assert plain().get_scaled_act_names() == plain().get_config_filenames() == []


@pytest.mark.parametrize("sizes", [(64, [96], 256, 96), (256, [48], 256, 96)])
def test_stored_layers_are_for_one_rank(cpu, sizes) -> None:
    found = next(examples.awq(torch.Generator())).config
    config = config_class(HOST, "hotshoe", "", cpu).from_config(dict(found))
    method = config.get_quant_method(nn.Linear(1, 1), "a.o_proj")
    with pytest.raises(ValueError, match=r"for one rank, and a\.o_proj is divided"):
        method.create_weights(nn.Module(), *sizes, torch.float32)
