"""Candidate of slot `selective_scan`: a convolution, two small products, the scan with its gate.

One kernel scans, whether a sequence has one token or a prompt: each state is read and written once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    SelectiveScanSpec,
    SelectiveScanWeights,
    Verdict,
    whole_step,
)
from hotshoe_triton.device import chaining, judge, next_power_of_2
from hotshoe_triton.states import PARTS, Convolution, state_parts

#: Entries of a channel's state; those of a few channels are in the registers of a program.
MAX_STATE_SIZE = 256
#: Entries of states that a program of the scan takes, where sequences have one token and several.
STEP_ENTRIES, PROMPT_ENTRIES = 1024, 128
#: Tokens of a prompt that a program takes together, and groups of them that are loaded at once.
TOGETHER, AHEAD = 8, 2
#: Tokens up to which a product has these tiles of tokens, columns and numbers that are summed.
TILES = {16: (16, 32, 128), 64: (32, 32, 64), 1 << 31: (64, 64, 32)}
#: Most shares that a sum is divided into, so that few tokens keep all units busy.
MOST_SHARES = 16


def supports(spec: SelectiveScanSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    size, block_size = spec.state_size, spec.block_size
    return judge(
        facts,
        spec.dtype,
        {
            f"state_size {size} is above {MAX_STATE_SIZE}": size > MAX_STATE_SIZE,
            f"block_size {block_size} is no multiple of 4, and each block's state is kept": (
                spec.checkpoints == "all" and block_size % 4 != 0
            ),
        },
    )


class SelectiveScan:
    """See `hotshoe.slots.SelectiveScanOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: SelectiveScanSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels import selective

        self._kernels, self._spec = selective, spec
        self._convolve = Convolution(spec, facts)
        self._chain, self._units = chaining(facts), facts.compute_units
        block_n = next_power_of_2(spec.state_size)
        self._scan: dict[str, Any] = {
            "INNER": spec.inner_size,
            "RANK": spec.dt_rank,
            "N": spec.state_size,
            "BLOCK_SIZE": spec.block_size,
            "SINGLE": spec.checkpoints == "none",
            "BLOCK_N": block_n,
        } | self._chain
        most = next_power_of_2(spec.inner_size)
        self._step = self._scan | {
            "ALL": False,
            "TOGETHER": 1,
            "AHEAD": 1,
            "BLOCK_P": min(most, max(1, STEP_ENTRIES // block_n)),
            "num_warps": 4,
        }
        self._prompt = self._scan | {
            "ALL": spec.checkpoints == "all",
            "TOGETHER": TOGETHER if spec.block_size % TOGETHER == 0 else 4,
            "AHEAD": AHEAD,
            "BLOCK_P": min(most, max(1, PROMPT_ENTRIES // block_n)),
            "num_warps": 1,
        }

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: AttentionMetadata,
        weights: SelectiveScanWeights,
    ) -> Tensor:
        spec, step, inner = self._spec, prepared, self._spec.inner_size
        out = projected.new_empty((len(projected), inner))
        if not len(projected):
            return out
        mixed = self._convolve(projected, cache[0], step, weights.conv, weights.conv_bias)
        made = self._made(mixed, weights)
        time = self._multiply(made[:, : spec.dt_rank], weights.dt, 1)[0]
        gates, (_, states), table = projected[:, inner:], cache, step.block_table
        constants = self._step if step.max_query_len == 1 else self._prompt
        grid = (step.num_reqs, -(-inner // constants["BLOCK_P"]))
        self._kernels.scan[grid](
            *(out, mixed, gates, time, made, states, weights.a, weights.d, weights.dt_bias),
            *(table, step.query_start_loc, step.seq_lens),
            *(gates.stride(0), states.stride(0), table.stride(0)),
            **constants,
        )
        return out

    def _made(self, mixed: Tensor, weights: SelectiveScanWeights) -> Tensor:
        """Return the numbers of the steps of time, B and C of each token, float32."""
        spec = self._spec
        parts = self._multiply(mixed, weights.project, MOST_SHARES)
        if len(parts) == 1 and spec.norm_eps is None:
            return parts[0]
        made = torch.empty_like(parts[0])
        self._kernels.norm_made[(len(mixed),)](
            *(made, parts, made if weights.norm is None else weights.norm, len(mixed)),
            RANK=spec.dt_rank,
            N=spec.state_size,
            SPLITS=len(parts),
            NORM=spec.norm_eps is not None,
            WEIGHTED=weights.norm is not None,
            EPS=spec.norm_eps or 0.0,
            **self._chain,
        )
        return made

    def _multiply(self, x: Tensor, weight: Tensor, most: int) -> Tensor:
        """Return products [shares, tokens, columns] float32, whose sum over shares is meant."""
        (columns, size), tokens = weight.shape, len(x)
        block_t, block_c, block_k = next(tile for n, tile in TILES.items() if tokens <= n)
        tiles, shares = -(-tokens // block_t) * -(-columns // block_c), 1
        while 2 * shares <= min(most, size // block_k) and tiles * shares < self._units:
            shares *= 2
        out = torch.empty((shares, tokens, columns), dtype=torch.float32, device=x.device)
        self._kernels.multiply[(-(-tokens // block_t), -(-columns // block_c), shares)](
            *(out, x, weight, tokens, x.stride(0)),
            COLUMNS=columns,
            SIZE=size,
            SPLITS=shares,
            PARTS=state_parts(self._spec.dtype),
            WEIGHT_PARTS=PARTS[self._spec.dtype],
            BLOCK_T=block_t,
            BLOCK_C=block_c,
            BLOCK_K=block_k,
            num_warps=4,
            num_stages=3,
            **self._chain,
        )
        return out
