"""Classes in the form of `kernels`: without state, and as right as the recipes."""

import pytest
import torch
from torch import nn

from hotshoe_bridge import layers


class HostRMSNorm(nn.Module):
    """What a host has; `kernels` puts the other class's forward in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))
        self.variance_epsilon = 1e-5

    def forward(self, hidden_states):
        return nn.functional.rms_norm(hidden_states, (16,), self.weight, self.variance_epsilon)


@pytest.fixture(autouse=True)
def chosen(operations):
    layers.use(operations)


def kernelized(module: nn.Module, name: str) -> nn.Module:
    module.forward = layers.LAYERS[name].forward.__get__(module)
    return module


@torch.inference_mode()
def test_a_layer_computes_what_the_host_does() -> None:
    x = torch.randn(2, 3, 16)
    for module, name in ((HostRMSNorm(), "RMSNorm"), (nn.Linear(16, 5), "Linear")):
        want = module(x)
        for _ in range(2):
            assert torch.allclose(kernelized(module, name)(x), want, atol=1e-5)


def test_classes_have_no_state_of_their_own() -> None:
    assert set(layers.LAYERS) == {"Linear", "RMSNorm", "RMSNormZeroCentered"}
    for name, made in layers.LAYERS.items():
        assert made.__init__ is nn.Module.__init__
        assert getattr(layers, name) is made
        assert (made.can_torch_compile, made.has_backward) == (False, False)


def test_a_module_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="layer RMSNorm does not know Linear"):
        kernelized(nn.Linear(16, 5), "RMSNorm")(torch.randn(1, 16))
