"""What candidates over states have in common: the convolution in front of the recurrence."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    GatedDeltaSpec,
    RgLruSpec,
    SelectiveScanSpec,
    ShortConvSpec,
    StateSpaceSpec,
)
from hotshoe_triton.device import chaining, next_power_of_2

#: Channels of a program, and tokens of a tile where sequences have several.
CHANNELS, TOKENS = 256, 16
#: Channels of one that multiplies by gates, whose three operands are in registers.
GATED_CHANNELS = 128
#: Numbers of bfloat16 that stand for one number of a type in products; 0 for float32 itself.
PARTS = {"bfloat16": 1, "float16": 2, "float32": 0}


def state_parts(dtype: str) -> int:
    """Return the same for what states are made of: these are float32 whatever the type is."""
    return min(2, 2 * PARTS[dtype])


class Convolution:
    """Convolves a step's inputs and keeps the last inputs of each sequence. SiLU follows; or the
    inputs have a gate in front, and one behind takes SiLU's place; or nothing follows."""

    def __init__(
        self,
        spec: GatedDeltaSpec | RgLruSpec | SelectiveScanSpec | ShortConvSpec | StateSpaceSpec,
        facts: DeviceFacts,
    ) -> None:
        from hotshoe_triton.kernels.states import convolve, keep_inputs

        self._kernel, self._keep, self._size = convolve, keep_inputs, spec.conv_size
        # The first tile reads and writes what was kept, and no other may need it.
        self._tokens = max(TOKENS, next_power_of_2(spec.conv_width))
        gated, plain = isinstance(spec, ShortConvSpec), isinstance(spec, RgLruSpec)
        self._silu = not plain and getattr(spec, "activation", "silu") == "silu"
        most = GATED_CHANNELS if gated else CHANNELS
        self._channels = min(most, next_power_of_2(spec.conv_size))
        self._constants = {
            "SIZE": spec.conv_size,
            "WIDTH": spec.conv_width,
            "BLOCK_SIZE": spec.block_size,
            "SINGLE": spec.checkpoints == "none",
            "ALL": spec.checkpoints == "all",
            "BLOCK_C": self._channels,
            "GATED": gated,
            "num_warps": 4,
        } | chaining(facts)

    def __call__(
        self,
        inputs: Tensor,
        cache: Tensor,
        step: AttentionMetadata,
        taps: Tensor,
        bias: Tensor | None,
        most: int = 0,
        split: tuple[Tensor, int] | None = None,
    ) -> Tensor:
        """Return [num_tokens, conv_size] of inputs, whose first columns these are; float32, or the
        inputs' type between gates.

        Args:
            most: Sequences with more tokens are left out; 0 takes all.
            split: [1 or 2, num_tokens, n], and how many numbers stand for one of the last n
                columns in products, as in `PARTS`: takes these, and the result lacks them where
                there is one sequence.
        """
        dtype = inputs.dtype if self._constants["GATED"] else torch.float32
        out = torch.empty((len(inputs), self._size), dtype=dtype, device=inputs.device)
        tokens = 1 if step.max_query_len == 1 else self._tokens
        places = step.num_reqs if tokens == 1 else len(inputs) // tokens + step.num_reqs
        grid = (places, -(-self._size // self._channels))
        self._kernel[grid](
            out,
            out if split is None else split[0],
            inputs,
            cache,
            taps,
            taps if bias is None else bias,
            step.block_table,
            step.query_start_loc,
            step.seq_lens,
            step.num_reqs,
            0 if split is None else split[0].stride(0),
            inputs.stride(0),
            cache.stride(0),
            step.block_table.stride(0),
            BIAS=bias is not None,
            BLOCK_T=tokens,
            MOST=most,
            WHOLE=self._size - (0 if split is None else split[0].size(-1)),
            PARTS=1 if split is None else split[1],
            SILU=self._silu,
            **self._constants,
        )
        return out

    def keep(self, inputs: Tensor, cache: Tensor, step: AttentionMetadata, most: int) -> None:
        """Keep the last inputs of sequences with more than `most` tokens."""
        self._keep[(step.num_reqs, -(-self._size // self._channels))](
            inputs,
            cache,
            step.block_table,
            step.query_start_loc,
            step.seq_lens,
            inputs.stride(0),
            cache.stride(0),
            step.block_table.stride(0),
            MOST=most,
            **self._constants,
        )
