"""Reference of slot `gated_mlp`: the references of its parts, one after the other."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.activation import build as build_activation
from hotshoe.slots.reference.linear import Linear
from hotshoe.slots.specs import GatedActivationSpec, GatedMlpSpec


class GatedMlp:
    """See `hotshoe.slots.GatedMlpOp`."""

    takes_quantized = True

    def __init__(self, spec: GatedMlpSpec, facts: DeviceFacts) -> None:
        self._gate_up, self._down = Linear(spec.gate_up, facts), Linear(spec.down, facts)
        inner = GatedActivationSpec(
            spec.down.in_features, spec.activation, spec.dtype, spec.down.row_quant
        )
        self._activation = build_activation(inner, facts)

    def load_gate_up(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._gate_up.load(tensors)

    def load_down(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._down.load(tensors)

    def state(self) -> dict[str, Tensor]:
        parts = {"gate_up": self._gate_up.state(), "down": self._down.state()}
        return {f"{part}.{name}": t for part, held in parts.items() for name, t in held.items()}

    def __call__(self, x: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        return self._down(self._activation(self._gate_up(x)))

    def nbytes(self) -> int:
        return self._gate_up.nbytes() + self._down.nbytes()
