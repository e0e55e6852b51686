"""Candidate `native` of slot `gated_mlp`: gates multiply inside the product that computes them.

What `gate_up` gives is never written: a tile holds gates beside what they multiply, and its sums
become act(gate) * up while they are close.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedMlpSpec, Verdict, refuse
from hotshoe_cpu import linear
from hotshoe_cpu.activation import ACTIVATION_CODES
from hotshoe_cpu.native import judge


def supports(spec: GatedMlpSpec, facts: DeviceFacts) -> Verdict:
    """Judge both products and the activation."""
    for name, part in (("gate_up", spec.gate_up), ("down", spec.down)):
        verdict = linear.supports(part, facts)
        if not verdict.accepted:
            return refuse(f"{name}: {verdict.reason}")
    refusals = {f"activation {spec.activation} is unknown": spec.activation not in ACTIVATION_CODES}
    return judge(facts, spec.dtype, refusals)


class GatedMlp:
    """See `hotshoe.slots.GatedMlpOp`."""

    def __init__(self, spec: GatedMlpSpec, facts: DeviceFacts) -> None:
        gate = ACTIVATION_CODES[spec.activation]
        self._gate_up = linear.Linear(spec.gate_up, facts, gate)
        self._down = linear.Linear(spec.down, facts)

    def load_gate_up(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._gate_up.load(tensors)

    def load_down(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._down.load(tensors)

    def state(self) -> dict[str, Tensor]:
        parts = {"gate_up": self._gate_up.state(), "down": self._down.state()}
        return {f"{part}.{name}": t for part, held in parts.items() for name, t in held.items()}

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._gate_up(x))

    def nbytes(self) -> int:
        return self._gate_up.nbytes() + self._down.nbytes()
