"""Candidate `native` of slot `selective_scan`: convolution, scan and gate in C++.

The two small products between them are PyTorch's, of float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    SelectiveScanSpec,
    SelectiveScanWeights,
    Verdict,
    whole_step,
)
from hotshoe_cpu.native import DTYPE_CODES, kernels
from hotshoe_cpu.states import CHECKPOINT_CODES, Convolution, judge_states, sequences_of


def supports(spec: SelectiveScanSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and kinds; sizes are free."""
    return judge_states(spec, facts, {})


class SelectiveScan:
    """See `hotshoe.slots.SelectiveScanOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: SelectiveScanSpec, facts: DeviceFacts) -> None:
        self._spec, self._scan = spec, kernels(facts).selective_scan
        self._convolve = Convolution(spec, facts)
        self._numbers = (
            spec.inner_size,
            spec.state_size,
            spec.block_size,
            CHECKPOINT_CODES[spec.checkpoints],
            DTYPE_CODES[spec.dtype],
        )

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: AttentionMetadata,
        weights: SelectiveScanWeights,
    ) -> Tensor:
        spec, states, rank = self._spec, cache[1], self._spec.dt_rank
        mixed = self._convolve(projected, cache[0], prepared, weights.conv, weights.conv_bias)
        made = self._made(mixed, weights)
        time = made[:, :rank] @ weights.dt.float().T
        b, c = made[:, rank:], made[:, rank + spec.state_size :]
        gates = projected[:, spec.inner_size :]
        # Rows behind the last request's are padding of the batch, if anything.
        out = torch.empty(len(projected), spec.inner_size, dtype=projected.dtype)
        self._scan(
            out.data_ptr(),
            gates.data_ptr(),
            gates.stride(0),
            mixed.data_ptr(),
            time.data_ptr(),
            b.data_ptr(),
            c.data_ptr(),
            made.stride(0),
            states.data_ptr(),
            states.stride(0),
            DTYPE_CODES[spec.state_dtype],
            *sequences_of(prepared),
            weights.a.data_ptr(),
            weights.d.data_ptr(),
            weights.dt_bias.data_ptr(),
            *self._numbers,
        )
        return out

    def _made(self, mixed: Tensor, weights: SelectiveScanWeights) -> Tensor:
        """Return the numbers of the steps of time, B and C of each token, float32."""
        spec, made = self._spec, mixed @ weights.project.float().T
        if spec.norm_eps is None:
            return made
        parts = [
            functional.rms_norm(part, (part.shape[1],), None, spec.norm_eps)
            for part in made.split(spec.made, dim=1)
        ]
        normed = torch.cat(parts, dim=1)
        return normed if weights.norm is None else normed.mul_(weights.norm)
