"""Reference of slot `selective_scan`: Mamba-1's convolution, scan and gate, float32 inside.

A chunk's recurrence is a prefix scan: each pass joins stretches that are twice as long. Decays are
only ever multiplied, so that nothing overflows.

Source: Gu and Dao 2023, arXiv:2312.00752, section 3.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixers import SelectiveScanWeights
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.norm import rms_norm
from hotshoe.slots.reference.states import Plan, Planner, advance, convolve
from hotshoe.slots.state_specs import SelectiveScanSpec

#: Most tokens of a chunk, each of which has decays as large as a state.
CHUNK = 16
#: Decays that are held at once.
ENTRIES = 1 << 25


class SelectiveScan:
    """See `hotshoe.slots.SelectiveScanOp`."""

    def __init__(self, spec: SelectiveScanSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self.prepare = Planner(spec, CHUNK).prepare

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: Plan,
        weights: SelectiveScanWeights,
    ) -> Tensor:
        spec, plan = self._spec, prepared
        inputs, z = torch.split(projected, list(spec.sections), dim=-1)
        x = F.silu(convolve(inputs.float(), cache[0], plan, weights.conv, weights.conv_bias))
        dt, b, c = self._made(x, weights)
        dt = F.softplus(dt @ weights.dt.float().T + weights.dt_bias)
        step, chunk = partial(_step, weights.a), partial(_chunk, weights.a)
        y = advance((x, b, c, dt), torch.empty_like(x), cache[1][:, 0], plan, step, chunk)
        y = (y + weights.d * x) * F.silu(z.float())
        return y.to(torch_dtype(spec.dtype))

    def _made(self, x: Tensor, weights: SelectiveScanWeights) -> tuple[Tensor, Tensor, Tensor]:
        """Return the numbers of the steps of time [t, dt_rank], and B and C [t, state_size]."""
        spec = self._spec
        made = x @ weights.project.float().T
        dt, b, c = torch.split(made, list(spec.made), dim=-1)
        if spec.norm_eps is None:
            return dt, b, c
        norm = torch.ones_like(made[0]) if weights.norm is None else weights.norm
        own = zip((dt, b, c), torch.split(norm, list(spec.made)), strict=True)
        dt, b, c = (rms_norm(part, weight, spec.norm_eps, 0.0) for part, weight in own)
        return dt, b, c


def _step(a: Tensor, state: Tensor, operands: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Take one token of each sequence; return y and the new states.

    Args:
        a: [inner, state_size].
        state: [r, inner, state_size].
        operands: x [r, inner], B and C [r, state_size], dt [r, inner].
    """
    x, b, c, dt = operands
    state = state * torch.exp(dt[..., None] * a) + (dt * x)[..., None] * b[:, None, :]
    return torch.einsum("rpn,rn->rp", state, c), state


def _chunk(
    a: Tensor, state: Tensor, operands: tuple[Tensor, ...], valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Take a chunk of each sequence, [r, l, ...], as many at once as there is room for."""
    size = max(1, ENTRIES // (valid.shape[1] * state[0].numel()))
    own = zip(*(torch.split(part, size) for part in (state, *operands, valid)), strict=True)
    ys, states = zip(*(_scan(a, *parts) for parts in own), strict=True)
    return torch.cat(ys), torch.cat(states)


def _scan(
    a: Tensor, state: Tensor, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """A token whose dt is 0 changes nothing."""
    dt = torch.where(valid[..., None], dt, 0.0)
    decay = torch.exp(dt[..., None] * a)
    added = (dt * x)[..., None] * b[:, :, None, :]
    added[:, 0] += decay[:, 0] * state
    span = 1
    while span < x.shape[1]:
        joined = added[:, span:] + decay[:, span:] * added[:, :-span]
        decay = torch.cat((decay[:, :span], decay[:, span:] * decay[:, :-span]), 1)
        added = torch.cat((added[:, :span], joined), 1)
        span *= 2
    return torch.einsum("rlpn,rln->rlp", added, c), added[:, -1]
