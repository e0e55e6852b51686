"""A host's linear layers in formats of checkpoints, each against the example's own numbers."""

import pytest
import torch

from hotshoe.errors import PluginError
from hotshoe_bridge.operations import Operations
from hotshoe_bridge.weights import Stacked, format_of, methods, multiplied, needless
from hotshoe_quantization import examples


@pytest.fixture(scope="module")
def cpu() -> Operations:
    return Operations("cpu")


@torch.inference_mode()
@pytest.mark.parametrize("name", ["awq", "gptq"])
def test_two_stacked_matrices_of_a_checkpoint(cpu, name) -> None:
    source = torch.Generator().manual_seed(int(torch.randint(1 << 30, ())))
    [first], [second] = (list(getattr(examples, name)(source)) for _ in range(2))
    made = format_of(cpu, "", first.config)
    rows, columns = first.weight.shape
    stacked = Stacked(made, ("a.q_proj", "a.k_proj"), (rows, rows), columns, "float32")
    for kind in (kind for kind in first.tensors if kind not in needless(made)):
        for part, example in enumerate((first, second)):
            stacked.take(kind, part, example.tensors[kind])
    op = stacked.operation(cpu)
    x = torch.randn(2, 3, columns)
    want = x @ torch.cat([first.weight, second.weight]).T
    assert ((multiplied(op, x, None) - want).norm() / want.norm()) < 0.02


def test_tensors_that_are_not_meant_are_named(cpu) -> None:
    config = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}
    stacked = Stacked(format_of(cpu, "", config), ("a.o_proj",), (96,), 256, "float32")
    with pytest.raises(ValueError, match=r"a\.o_proj\.qweight is \(2, 2\) of torch\.float32, and"):
        stacked.take("qweight", 0, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"the checkpoint has no a\.o_proj\.qweight"):
        stacked.operation(cpu)


def test_methods_and_formats(cpu) -> None:
    assert methods(cpu)["hotshoe_int8"] == "int8"
    assert format_of(cpu, "", {}).online
    assert format_of(cpu, "int8", {}).online
    with pytest.raises(ValueError, match="hotshoe_int8: this checkpoint is quantized already"):
        format_of(cpu, "int8", {"quant_method": "awq"})
    with pytest.raises(PluginError, match="no-such"):
        format_of(cpu, "", {"quant_method": "no-such"})
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    with pytest.raises(ValueError, match="hosts would not find by name"):
        format_of(cpu, "", config)


def test_parts_in_several_forms_are_refused(cpu) -> None:
    config = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}
    kept = format_of(cpu, "", {**config, "modules_to_not_convert": ["k_proj"]})
    with pytest.raises(ValueError, match=r"a\.q_proj, a\.k_proj are stored in several forms"):
        Stacked(kept, ("a.q_proj", "a.k_proj"), (96, 96), 256, "float32")
