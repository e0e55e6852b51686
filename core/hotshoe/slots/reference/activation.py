"""Reference of slot `gated_activation`."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import GatedActivationOp
from hotshoe.slots.reference.linear import quantized
from hotshoe.slots.specs import GatedActivationSpec

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)^2, which no gate has: experts and MLPs without gates have it."""
    return F.relu(x).square()


def build(spec: GatedActivationSpec, facts: DeviceFacts) -> GatedActivationOp:
    """Build act(gate) * up, float32 inside, rounded once."""
    activation = ACTIVATIONS[spec.activation]

    def gated(x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        gate, up = x.float().chunk(2, dim=-1)
        return quantized((activation(gate) * up).to(x.dtype), spec.quant)

    return gated
