"""Reference of slot `state_space`: Mamba-2's convolution, scan, gate and norm, float32 inside.

Within a chunk the recurrence is a masked matrix product, between chunks its state goes on.

Source: Dao and Gu 2024, arXiv:2405.21060, section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixers import StateSpaceWeights
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.norm import rms_norm
from hotshoe.slots.reference.states import Plan, Planner, advance, convolve, decays
from hotshoe.slots.state_specs import StateSpaceSpec

#: Of the convolution and the gate.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "identity": torch.positive}


class StateSpace:
    """See `hotshoe.slots.StateSpaceOp`."""

    def __init__(self, spec: StateSpaceSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._activation = ACTIVATIONS[spec.activation]
        self.prepare = Planner(spec).prepare

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: Plan,
        weights: StateSpaceWeights,
    ) -> Tensor:
        spec, plan = self._spec, prepared
        z, inputs, dt = torch.split(projected, list(spec.sections), dim=-1)
        mixed = convolve(inputs.float(), cache[0], plan, weights.conv, weights.conv_bias)
        mixed = self._activation(mixed)
        groups = (spec.num_groups, spec.state_size)
        x, b, c = torch.split(mixed, [spec.inner_size, *[groups[0] * groups[1]] * 2], dim=-1)
        dt = F.softplus(dt.float() + weights.dt_bias).clamp(*spec.dt_limits)
        x = x.reshape(-1, spec.num_heads, spec.head_dim)
        b, c = (
            part.reshape(-1, *groups).repeat_interleave(spec.num_heads // groups[0], dim=1)
            for part in (b, c)
        )
        step, chunk = partial(_step, weights.a), partial(_chunk, weights.a)
        y = advance((x, b, c, dt), torch.empty_like(x), cache[1], plan, step, chunk)
        y = (y + weights.d[:, None] * x).flatten(1)
        return self._gated(y, z.float(), weights.norm).to(torch_dtype(spec.dtype))

    def _gated(self, y: Tensor, z: Tensor, norm: Tensor | None) -> Tensor:
        """Gate [t, inner_size] by act(z), and norm it before or after that."""
        spec, gate = self._spec, self._activation(z)
        if norm is None:
            return y * gate
        y = y if spec.norm == "before" else y * gate
        parts = (spec.norm_groups, spec.inner_size // spec.norm_groups)
        y = rms_norm(y.view(-1, *parts), norm.view(parts), spec.norm_eps, 0.0).flatten(1)
        return y * gate if spec.norm == "before" else y


def _step(a: Tensor, state: Tensor, operands: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Take one token of each sequence; return y and the new states.

    Args:
        a: [heads].
        state: [r, heads, head_dim, state_size].
        operands: x [r, heads, head_dim], B and C [r, heads, state_size], dt [r, heads].
    """
    x, b, c, dt = operands
    added = (dt[..., None] * x)[..., None] * b[:, :, None, :]
    state = state * torch.exp(dt * a)[..., None, None] + added
    return torch.einsum("rhpn,rhn->rhp", state, c), state


def _chunk(
    a: Tensor, state: Tensor, operands: tuple[Tensor, ...], valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Take a chunk of each sequence, [r, l, ...]; a token whose dt is 0 changes nothing."""
    x, b, c, dt = operands
    dt = torch.where(valid[..., None], dt, 0.0)
    total = (dt * a).double().cumsum(1)
    decay = decays(total).permute(0, 3, 1, 2)
    scores = torch.einsum("rihn,rjhn->rhij", c, b) * decay * dt.transpose(1, 2)[:, :, None, :]
    y = torch.einsum("rhij,rjhp->rihp", scores, x)
    y = y + torch.einsum("rihn,rhpn->rihp", c, state) * torch.exp(total).float()[..., None]
    left = (torch.exp(total[:, -1:] - total).float() * dt)[..., None] * b
    state = state * torch.exp(total[:, -1]).float()[..., None, None]
    return y, state + torch.einsum("rjhn,rjhp->rhpn", left, x)
