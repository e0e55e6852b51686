"""Reference of slot `rg_lru`: Griffin's convolution, recurrence and gate, float32 inside.

A chunk's recurrence is a prefix scan: each pass joins stretches that are twice as long.

Source: De et al. 2024, arXiv:2402.19427, section 2.4.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixers import RgLruWeights
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.states import Plan, Planner, advance, convolve
from hotshoe.slots.state_specs import RgLruSpec


class RgLru:
    """See `hotshoe.slots.RgLruOp`."""

    def __init__(self, spec: RgLruSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self.prepare = Planner(spec).prepare

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: Plan,
        weights: RgLruWeights,
    ) -> Tensor:
        spec, plan = self._spec, prepared
        inputs, behind = torch.split(projected, list(spec.sections), dim=-1)
        x = convolve(inputs.float(), cache[0], plan, weights.conv, weights.conv_bias)
        opening, decay = self._gates(x, weights)
        logs = weights.rate * decay
        scale = torch.sqrt(-torch.expm1(2 * logs))
        scale = torch.where(_begins(plan)[:, None], 1.0, scale)
        operands = torch.exp(logs), scale * opening * x
        h = advance(operands, torch.empty_like(x), cache[1][:, 0, :, 0], plan, _step, _chunk)
        return (h * F.gelu(behind.float(), approximate="tanh")).to(torch_dtype(spec.dtype))

    def _gates(self, x: Tensor, weights: RgLruWeights) -> tuple[Tensor, Tensor]:
        """Return the gates of the input and of the decay, [t, inner_size]."""
        spec = self._spec
        heads = x.view(-1, spec.num_heads, spec.head_dim)
        made = torch.einsum("nhi,hij->nhj", heads, weights.gates)
        both = (part.flatten(1) for part in torch.split(made, spec.head_dim, dim=-1))
        opening, decay = (
            torch.sigmoid(part + bias) for part, bias in zip(both, weights.gate_bias, strict=True)
        )
        return opening, decay


def _begins(plan: Plan) -> Tensor:
    """Return [t] whether each token is the first of its text."""
    before, width = plan.taps[:, -2], plan.taps.shape[1]
    carried = len(plan.known) * (width - 1)
    owner = torch.clamp(before, max=carried - 1) // (width - 1)
    return (before < carried) & ~plan.known[owner]


def _step(state: Tensor, operands: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Take one token of each sequence; return the new states [r, inner_size], twice."""
    decay, added = operands
    state = decay * state + added
    return state, state


def _chunk(state: Tensor, operands: tuple[Tensor, ...], valid: Tensor) -> tuple[Tensor, Tensor]:
    """Take a chunk of each sequence, [r, l, inner_size]. A token that is not there adds nothing."""
    decay = torch.where(valid[..., None], operands[0], 1.0)
    added = torch.where(valid[..., None], operands[1], 0.0)
    added[:, 0] += decay[:, 0] * state
    span = 1
    while span < added.shape[1]:
        joined = added[:, span:] + decay[:, span:] * added[:, :-span]
        decay = torch.cat((decay[:, :span], decay[:, span:] * decay[:, :-span]), 1)
        added = torch.cat((added[:, :span], joined), 1)
        span *= 2
    return added, added[:, -1]
