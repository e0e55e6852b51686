"""Reference of slot `moe`: tokens sorted by expert, then the references of an MLP's parts.

It asks the device how many tokens each expert has, and so waits for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixture import Placement, ProductChange
from hotshoe.slots.operations import LinearOp
from hotshoe.slots.quant_spec import QuantSpec
from hotshoe.slots.reference.activation import ACTIVATIONS, squared_relu
from hotshoe.slots.reference.linear import Linear, common_scale, rounded
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
        self._gate_up = _Matrices(spec.gate_up, spec.places, facts, linear)
        self._down = _Matrices(spec.down, spec.places, facts, linear)

    def load_gate_up(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._gate_up.load(expert, tensors)

    def load_down(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._down.load(expert, tensors)

    def state(self) -> dict[str, Tensor]:
        parts = {"gate_up": self._gate_up, "down": self._down}
        return {
            f"experts.{i}.{part}.{name}": tensor
            for part, matrices in parts.items()
            for i in range(self._spec.places)
            for name, tensor in matrices.state(i).items()
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
        products = self._gate_up.products(), self._down.products()
        return by_expert(self._spec, products, x, (logits, correction), placement, between)

    def nbytes(self) -> int:
        return self._gate_up.nbytes() + self._down.nbytes()


class _Matrices:
    """One matrix of every expert.

    4-bit floats of x have one scale of the whole for all experts: the largest that one of them has.
    """

    def __init__(
        self,
        spec: LinearSpec,
        count: int,
        facts: DeviceFacts,
        linear: Callable[[LinearSpec, DeviceFacts], LinearOp],
    ) -> None:
        x = spec.activation
        self._x = x if x is not None and x.format == "fp4_e2m1" else None
        alone = spec if self._x is None else replace(spec, activation=None)
        self._matrices = [linear(alone, facts) for _ in range(count)]
        self._scales = torch.zeros(count, device=facts.device)
        self._scaled = False

    def load(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._matrices[expert].load(tensors)
        if self._x is not None and "input_scale" in tensors:
            self._scaled = True
            self._scales[expert] = common_scale(tensors["input_scale"])

    def products(self) -> Sequence[Product]:
        """Return what multiplies each expert's rows."""
        x, scale = self._x, None
        if x is None:
            return self._matrices
        if self._scaled:
            largest = self._scales.amax()
            scale = torch.where(largest > 0, largest, torch.nan)
        return [partial(_rounding, matrix, x, scale) for matrix in self._matrices]

    def state(self, expert: int) -> dict[str, Tensor]:
        more = {"input_scale": self._scales[expert : expert + 1]} if self._scaled else {}
        return {**self._matrices[expert].state(), **more}

    def nbytes(self) -> int:
        scales = self._scales.nbytes if self._scaled else 0
        return scales + sum(matrix.nbytes() for matrix in self._matrices)


def _rounding(matrix: LinearOp, x: QuantSpec, scale: Tensor | None, rows: Tensor) -> Tensor:
    return matrix(rounded(rows, x, scale))


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
    top = spec.limit if spec.gate_limit is None else spec.gate_limit
    if top is not None:
        gate = gate.clamp(max=top)
    if spec.limit is not None and up is not None:
        up = up.clamp(-spec.limit, spec.limit)
    if spec.alpha == 1.0:
        active = EXPERT_ACTIVATIONS[spec.activation](gate)
    else:
        active = gate * (spec.alpha * gate).sigmoid()
    return active if up is None else active * (up + spec.shift)
