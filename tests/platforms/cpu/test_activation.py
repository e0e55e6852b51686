"""The activation adapter against core's reference."""

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedActivationSpec
from hotshoe.slots.reference.activation import ACTIVATIONS, build
from hotshoe_cpu import activation


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_matches_the_reference(
    facts: DeviceFacts, kind: str, dtype: str, rng: torch.Generator
) -> None:
    spec = GatedActivationSpec(77, kind, dtype)
    assert activation.supports(spec, facts).accepted
    x = torch.randn(5, 160, generator=rng).to(getattr(torch, dtype))[:, :154]
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    torch.testing.assert_close(
        activation.GatedActivation(spec, facts)(x),
        build(spec, facts)(x),
        rtol=tolerance,
        atol=tolerance,
    )


def test_unknown_activation_is_refused(facts: DeviceFacts) -> None:
    spec = GatedActivationSpec(8, "relu2", "float32")
    assert activation.supports(spec, facts).reason == "activation relu2 is unknown"
