"""A gated MLP against the three operations that it takes the place of."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedActivationSpec, GatedMlpSpec, LinearSpec, QuantSpec
from hotshoe_cpu import activation, linear, mlp

ONLINE = QuantSpec("int8", "channel", online=True)
INT8 = {"weight": ONLINE, "activation": QuantSpec("int8", "token", dynamic=True)}


def block(dtype: str, kind: str = "silu", bias: bool = False, int8: bool = False) -> GatedMlpSpec:
    both = {"bias": bias, **(INT8 if int8 else {})}
    gate_up, down = LinearSpec(70, 2 * 45, dtype, **both), LinearSpec(45, 48, dtype, **both)
    return GatedMlpSpec(gate_up, down, kind)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", activation.ACTIVATION_CODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matches_its_parts(
    facts: DeviceFacts, rng: torch.Generator, dtype: str, kind: str, bias: bool, int8: bool
) -> None:
    spec, stored = block(dtype, kind, bias, int8), getattr(torch, dtype)
    assert mlp.supports(spec, facts).accepted
    whole = mlp.GatedMlp(spec, facts)
    first, second = linear.Linear(spec.gate_up, facts), linear.Linear(spec.down, facts)
    act = activation.GatedActivation(GatedActivationSpec(45, kind, dtype), facts)
    for parts, part_loads in (
        ((20, 25, 45), (whole.load_gate_up, first.load)),
        ((48,), (whole.load_down, second.load)),
    ):
        inputs = 70 if len(parts) > 1 else 45
        tensors = {"weight": [torch.randn(n, inputs, generator=rng).to(stored) / 8 for n in parts]}
        if bias:
            tensors["bias"] = [torch.randn(n, generator=rng).to(stored) for n in parts]
        for load in part_loads:
            load(tensors)
    for rows in (0, 1, 3, 40):
        x = torch.randn(rows, 100, generator=rng).to(stored)[:, :70]
        want, got = second(act(first(x))), whole(x)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        # Gates and ups are not rounded between, and int8 activations may go either way.
        exact = dtype == "float32" and not int8
        relative, absolute = (1e-5, 1e-5) if exact else (2**-7, 0.15)
        torch.testing.assert_close(got, want, rtol=relative, atol=absolute)
    assert whole.nbytes() >= first.nbytes() + second.nbytes()


def test_refusals_name_the_part(facts: DeviceFacts) -> None:
    spec = block("float32")
    half = replace(spec, down=replace(spec.down, dtype="float16"))
    assert mlp.supports(half, facts).reason.startswith("down: weights of type float16")
    half = replace(spec, gate_up=replace(spec.gate_up, dtype="float16"))
    assert mlp.supports(half, facts).reason.startswith("gate_up: weights of type float16")
    odd = replace(spec, activation="relu2")
    assert mlp.supports(odd, facts).reason == "activation relu2 is unknown"
