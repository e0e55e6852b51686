"""Reference of slot `moe`: tokens sorted by expert, then the references of an MLP's parts.

It asks the device how many tokens each expert has, and so waits for it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixture import Placement, ProductChange
from hotshoe.slots.operations import LinearOp
from hotshoe.slots.reference.activation import ACTIVATIONS, squared_relu
from hotshoe.slots.reference.linear import Linear
from hotshoe.slots.reference.router import placed, route
from hotshoe.slots.specs import LinearSpec, MoeSpec

#: Maps [n, in_features] to [n, out_features].
Product: TypeAlias = Callable[[Tensor], Tensor]

EXPERT_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **ACTIVATIONS,
    "relu2": squared_relu,
}


class Moe:
    """See `hotshoe.slots.MoeOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        linear: Makes the operation of one matrix; a platform may have faster ones.
    """

    def __init__(
        self,
        spec: MoeSpec,
        facts: DeviceFacts,
        linear: Callable[[LinearSpec, DeviceFacts], LinearOp] = Linear,
    ) -> None:
        self._spec = spec
        experts = range(spec.places)
        self._gate_up = [linear(spec.gate_up, facts) for _ in experts]
        self._down = [linear(spec.down, facts) for _ in experts]

    def load_gate_up(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._gate_up[expert].load(tensors)

    def load_down(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._down[expert].load(tensors)

    def state(self) -> dict[str, Tensor]:
        parts = {"gate_up": self._gate_up, "down": self._down}
        return {
            f"experts.{i}.{part}.{name}": tensor
            for part, matrices in parts.items()
            for i, matrix in enumerate(matrices)
            for name, tensor in matrix.state().items()
        }

    def __call__(
        self,
        x: Tensor,
        logits: Tensor,
        correction: Tensor | None,
        placement: Placement | None = None,
    ) -> Tensor:
        return self.adapted(x, logits, correction, placement, None)

    def adapted(
        self,
        x: Tensor,
        logits: Tensor,
        correction: Tensor | None,
        placement: Placement | None,
        between: ProductChange | None,
    ) -> Tensor:
        """See `hotshoe.slots.AdaptableMoeOp`."""
        products = self._gate_up, self._down
        return by_expert(self._spec, products, x, (logits, correction), placement, between)

    def nbytes(self) -> int:
        return sum(matrix.nbytes() for matrix in (*self._gate_up, *self._down))


def by_expert(
    spec: MoeSpec,
    products: tuple[Sequence[Product], Sequence[Product]],
    x: Tensor,
    router: tuple[Tensor, Tensor | None],
    placement: Placement | None,
    between: ProductChange | None,
) -> Tensor:
    """Compute a mixture expert by expert.

    Args:
        spec: The mixture.
        products: Of each expert here, by the first matrix and by the second.
        x: See `hotshoe.slots.MoeOp`.
        router: Its logits and correction.
        placement, between: See `hotshoe.slots.AdaptableMoeOp`.
    """
    weights, ids = route(*router, spec.top_k, spec.router)
    flat = (ids if placement is None else placed(ids, placement)).flatten()
    order = flat.argsort(stable=True)
    tokens, experts = order // spec.top_k, flat[order]
    rows = x[tokens]
    size = spec.down.out_features
    results = torch.zeros(len(flat), size, dtype=torch.float32, device=x.device)
    begin = 0
    for expert, count in enumerate(flat.bincount(minlength=spec.places).tolist()[: spec.places]):
        if not count:
            continue
        part = slice(begin, begin := begin + count)
        y = products[0][expert](rows[part])
        if between is not None:
            between("gate_up", y, rows[part], tokens[part], experts[part])
        inner = activated(y.float(), spec).to(x.dtype)
        y = products[1][expert](inner)
        if between is not None:
            between("down", y, inner, tokens[part], experts[part])
        results[order[part]] = y.float()
    return (results.view(*ids.shape, size) * weights[:, :, None]).sum(1).to(x.dtype)


def activated(x: Tensor, spec: MoeSpec) -> Tensor:
    """Apply a specification's activation to float32 results of gate_up."""
    gate, up = x.chunk(2, -1) if spec.gated else (x, None)
    if spec.limit is not None:
        gate = gate.clamp(max=spec.limit)
        up = None if up is None else up.clamp(-spec.limit, spec.limit)
    if spec.alpha == 1.0:
        active = EXPERT_ACTIVATIONS[spec.activation](gate)
    else:
        active = gate * (spec.alpha * gate).sigmoid()
    return active if up is None else active * (up + spec.shift)
