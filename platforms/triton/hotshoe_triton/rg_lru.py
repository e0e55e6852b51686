"""Candidate of slot `rg_lru`: a convolution, the gates' products by PyTorch, and a scan.

One kernel scans, whether a sequence has one token or a prompt: each state is read and written once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, RgLruSpec, RgLruWeights, Verdict, whole_step
from hotshoe_triton.device import chaining, judge, next_power_of_2
from hotshoe_triton.states import Convolution

#: Tokens of a tile of a prompt, where blocks of the cache are whole tiles; and channels that a
#: program takes of one token and of such tiles.
TOKENS = (32, 16, 4)
STEP_CHANNELS, PROMPT_CHANNELS = 256, 16


def supports(spec: RgLruSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    block_size = spec.block_size
    return judge(
        facts,
        spec.dtype,
        {
            f"block_size {block_size} is no multiple of 4, and each block's state is kept": (
                spec.checkpoints == "all" and block_size % 4 != 0
            ),
        },
    )


class RgLru:
    """See `hotshoe.slots.RgLruOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: RgLruSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels import rg_lru

        self._kernel, self._spec = rg_lru.recur, spec
        self._convolve = Convolution(spec, facts)
        common: dict[str, Any] = {
            "INNER": spec.inner_size,
            "HEAD": spec.head_dim,
            "BLOCK_SIZE": spec.block_size,
            "SINGLE": spec.checkpoints == "none",
        } | chaining(facts)
        fitting = (n for n in TOKENS if spec.block_size % n == 0)
        most = next_power_of_2(spec.inner_size)
        self._step = common | {
            "ALL": False,
            "BLOCK_T": 1,
            "BLOCK_C": min(most, STEP_CHANNELS),
            "num_warps": 4,
        }
        self._prompt = common | {
            "ALL": spec.checkpoints == "all",
            "BLOCK_T": next(fitting) if spec.checkpoints == "all" else TOKENS[0],
            "BLOCK_C": min(most, PROMPT_CHANNELS),
            "num_warps": 4,
        }

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: AttentionMetadata,
        weights: RgLruWeights,
    ) -> Tensor:
        spec, step, inner = self._spec, prepared, self._spec.inner_size
        out = projected.new_empty((len(projected), inner))
        if not len(projected):
            return out
        mixed = self._convolve(projected, cache[0], step, weights.conv, weights.conv_bias)
        heads = mixed.view(-1, spec.num_heads, spec.head_dim).transpose(0, 1)
        made, behind = torch.bmm(heads, weights.gates), projected[:, inner:]
        constants = self._step if step.max_query_len == 1 else self._prompt
        grid = (step.num_reqs, -(-inner // constants["BLOCK_C"]))
        (_, states), table = cache, step.block_table
        self._kernel[grid](
            *(out, mixed, made, behind, states, weights.gate_bias, weights.rate),
            *(table, step.query_start_loc, step.seq_lens, len(mixed)),
            *(behind.stride(0), states.stride(0), table.stride(0)),
            **constants,
        )
        return out
