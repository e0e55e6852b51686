"""Reference of slot `gated_delta`: convolution, gated delta rule, norm and gate, float32 inside.

A state S [value_dim, key_dim] of each head forgets, then replaces what its key has found in it:
S <- S diag(exp(g)), S <- S + beta (v - S k) k^T, o = S q. Within a chunk, the values that replace
solve a triangular system; between chunks the state goes on.

Source: Yang et al. 2024, arXiv:2412.06464, sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixers import GatedDeltaWeights
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.norm import rms_norm
from hotshoe.slots.reference.states import Plan, Planner, advance, convolve, decays
from hotshoe.slots.state_specs import GatedDeltaSpec

#: Joins the squared length of q and of k where they are brought to length 1.
LENGTH_EPS = 1e-6
#: Most tokens of a chunk with a decay for each channel, whose pairs of tokens have a row each.
CHANNEL_CHUNK = 16
GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}


class GatedDelta:
    """See `hotshoe.slots.GatedDeltaOp`."""

    def __init__(self, spec: GatedDeltaSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._gate = GATES[spec.gate]
        chunk = CHANNEL_CHUNK if spec.decay == "channel" else None
        self.prepare = Planner(spec, chunk).prepare

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: Plan,
        weights: GatedDeltaWeights,
    ) -> Tensor:
        spec = self._spec
        inputs, z, beta, decay = torch.split(projected, list(spec.sections), dim=-1)
        mixed = F.silu(convolve(inputs.float(), cache[0], prepared, weights.conv, None))
        keys = spec.num_key_heads * spec.key_dim
        q, k, v = torch.split(mixed, [keys, keys, spec.inner_size], dim=-1)
        q, k = (self._directions(part) for part in (q, k))
        v = v.reshape(-1, spec.num_heads, spec.value_dim)
        decay = (decay.float() + weights.dt_bias).view(len(v), spec.num_heads, -1)
        operands = (
            q * spec.key_dim**-0.5,
            k,
            v,
            beta.float().sigmoid() * spec.beta_scale,
            self._log_decay(weights.a[:, None], decay),
        )
        y = advance(operands, torch.empty_like(v), cache[1], prepared, _step, _chunk)
        y = rms_norm(y, weights.norm, spec.norm_eps, 0.0).flatten(1)
        return (y * self._gate(z.float())).to(torch_dtype(spec.dtype))

    def _log_decay(self, rate: Tensor, x: Tensor) -> Tensor:
        floor = self._spec.decay_floor
        return rate * F.softplus(x) if floor is None else floor * torch.sigmoid(-rate * x)

    def _directions(self, part: Tensor) -> Tensor:
        """Return each head's vector of length 1, for every head of v: [t, num_heads, key_dim]."""
        spec = self._spec
        part = part.reshape(-1, spec.num_key_heads, spec.key_dim)
        part = part * torch.rsqrt(part.square().sum(-1, keepdim=True) + LENGTH_EPS)
        return part.repeat_interleave(spec.num_heads // spec.num_key_heads, dim=1)


def _step(state: Tensor, operands: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Take one token of each sequence; return o and the new states.

    Args:
        state: [r, heads, value_dim, key_dim].
        operands: q and k [r, heads, key_dim], v [r, heads, value_dim], beta [r, heads], log decays
            [r, heads, key_dim or 1].
    """
    q, k, v, beta, decay = operands
    state = state * torch.exp(decay)[:, :, None, :]
    new = beta[..., None] * (v - torch.einsum("rhvk,rhk->rhv", state, k))
    state = state + new[..., None] * k[:, :, None, :]
    return torch.einsum("rhvk,rhk->rhv", state, q), state


def _chunk(state: Tensor, operands: tuple[Tensor, ...], valid: Tensor) -> tuple[Tensor, Tensor]:
    """Take a chunk of each sequence, [r, l, ...]."""
    q, k, v, beta, decay = operands
    # What has neither beta nor decay changes nothing.
    beta = torch.where(valid[..., None], beta, 0.0)
    total = torch.where(valid[..., None, None], decay, 0.0).double().cumsum(1)
    left, decayed = decays(total), torch.exp(total).float()
    if decay.shape[-1] == 1:
        pairs = torch.einsum("rihk,rjhk->rijh", k, k) * left[..., 0]
        scores = torch.einsum("rihk,rjhk->rijh", q, k) * left[..., 0]
    else:
        pairs = torch.einsum("rihk,rjhk,rijhk->rijh", k, k, left)
        scores = torch.einsum("rihk,rjhk,rijhk->rijh", q, k, left)
    system = (beta[:, :, None, :] * pairs).permute(0, 3, 1, 2)
    found = torch.einsum("rihk,rhvk->rihv", k * decayed, state)
    wanted = (beta[..., None] * (v - found)).transpose(1, 2)
    new = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    y = torch.einsum("rihk,rhvk->rihv", q * decayed, state)
    y = y + torch.einsum("rijh,rhjv->rihv", scores, new)
    kept = k * torch.exp(total[:, -1:] - total).float()
    state = state * decayed[:, -1][:, :, None, :]
    return y, state + torch.einsum("rhjv,rjhk->rhvk", new, kept)
