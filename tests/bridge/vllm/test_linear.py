"""Methods of quantization as the engine calls them."""

import torch
from tests.bridge.vllm.conftest import LinearBase
from torch import nn
from torch.nn import functional as F

from hotshoe_bridge.operations import Operations
from hotshoe_bridge.vllm import linear


@torch.inference_mode()
def test_a_method_for_each_that_quantizes_at_load(engine) -> None:
    operations = Operations("cpu")
    linear.register(operations)
    online = operations.plugins.mapping("hotshoe_quantizations")
    assert set(engine.registered) == {"hotshoe", *(f"hotshoe_{name}" for name in online)}
    x = torch.randn(2, 3, 64)
    for name, near in (("hotshoe", 1e-5), ("hotshoe_int8_weights", 0.02)):
        config = engine.registered[name]()  # as that engine does without a file to read
        assert (config.get_name(), config.get_min_capability()) == (name, 0)
        method = config.get_quant_method(layer := LinearBase(), "model.o_proj")
        method.create_weights(layer, 64, [8, 24], 64, 32, torch.float32, weight_loader=None)
        method.process_weights_after_loading(layer)
        want = F.linear(x, layer.weight)
        y = method.apply(layer, x)
        assert ((y - want).norm() / want.norm()) < near
        bias = torch.randn(32)
        assert torch.equal(method.apply(layer, x, bias), y + bias)
    assert config.get_quant_method(nn.Linear(2, 2), "any") is None
