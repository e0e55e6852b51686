"""Out-of-tree classes: their numbers, and that every kind of device calls them."""

import inspect

import pytest
import torch

from hotshoe_bridge.vllm import layers

KINDS = ("RMSNorm", "GemmaRMSNorm", "SiluAndMul")


@pytest.fixture
def made(engine, operations):
    layers.register(operations)
    return engine.registered


@pytest.mark.parametrize("name", KINDS)
def test_methods_take_what_the_engine_gives(made, name) -> None:
    """Each that a kind of device may call; its own on plain tensors stays, for compiled models."""
    base = made[name].__mro__[1]
    kinds = [one for one in dir(made[name]) if one.startswith("forward_")]
    assert "forward_oot" in kinds
    for kind in set(kinds) - {"forward_native"}:
        taken = list(inspect.signature(getattr(made[name], kind)).parameters)
        wanted = list(inspect.signature(base.forward_some_device).parameters)
        assert taken[: len(wanted)] == wanted
    assert made[name].forward_native is base.forward_native


@torch.inference_mode()
@pytest.mark.parametrize("name", KINDS[:2])
def test_norms_compute_what_the_engine_does(made, name) -> None:
    norm = made[name](24)
    x, residual = torch.randn(2, 2, 5, 24)
    for forward in (norm.forward_oot, norm.forward_some_device):
        assert torch.allclose(forward(x.clone()), norm.forward_native(x), atol=1e-5)
        got = forward(x.clone(), residual.clone())
        for one, want in zip(got, norm.forward_native(x, residual), strict=True):
            assert torch.allclose(one, want, atol=1e-5)


@torch.inference_mode()
def test_the_activation_computes_what_the_engine_does(made) -> None:
    gated = made["SiluAndMul"]()
    x = torch.randn(3, 5, 24)
    assert torch.allclose(gated.forward_oot(x), gated.forward_native(x), atol=1e-5)
