"""What candidates over states of sequences have in common: what they judge, and what they hand on.

The kernels read the step's block table themselves, so a step needs no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    GatedDeltaSpec,
    GatedDeltaWeights,
    RgLruSpec,
    RgLruWeights,
    SelectiveScanSpec,
    ShortConvSpec,
    StateSpaceSpec,
    StateSpaceWeights,
    Verdict,
    whole_step,
)
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels

#: Codes of what the cache keeps, at the kernels' boundary.
CHECKPOINT_CODES = {"none": 0, "align": 1, "all": 2}


def judge_states(
    spec: GatedDeltaSpec | RgLruSpec | SelectiveScanSpec | ShortConvSpec | StateSpaceSpec,
    facts: DeviceFacts,
    refusals: dict[str, bool],
) -> Verdict:
    """Judge what all such blocks have; `refusals` as for `judge`."""
    kept = {name: getattr(spec, name, spec.dtype) for name in ("conv_dtype", "state_dtype")}
    types = {
        f"{name} {dtype} is not one of {', '.join(DTYPE_CODES)}": dtype not in DTYPE_CODES
        for name, dtype in kept.items()
    }
    known = ", ".join(CHECKPOINT_CODES)
    return judge(
        facts,
        spec.dtype,
        types
        | {
            f"checkpoints {spec.checkpoints} is not one of {known}": spec.checkpoints
            not in CHECKPOINT_CODES,
            f"conv_width {spec.conv_width} leaves nothing to carry on": spec.conv_width < 2,
            f"block_size {spec.block_size} is not positive": spec.block_size < 1,
        }
        | refusals,
    )


def sequences_of(step: AttentionMetadata) -> tuple[int, ...]:
    """Return the kernels' arguments that say which sequences a step has."""
    table = step.block_table
    return (
        table.data_ptr(),
        table.stride(0),
        step.query_start_loc.data_ptr(),
        step.seq_lens.data_ptr(),
        step.num_reqs,
    )


class StateBlock:
    """A block with states between its projections, which one call of a kernel computes.

    Args:
        kernel: Takes the output, the inputs, both caches, the step's sequences, the weights and
            `numbers`, in this order.
        spec: The block.
        weights: Names of the weights that the kernel takes; it gets 0 for a weight that is None.
        numbers: Sizes and codes of `spec`.
    """

    prepare = staticmethod(whole_step)

    def __init__(
        self,
        kernel: Callable[..., None],
        spec: GatedDeltaSpec | RgLruSpec | StateSpaceSpec,
        weights: Sequence[str],
        numbers: tuple[float, ...],
    ) -> None:
        self._kernel, self._width, self._numbers = kernel, spec.inner_size, numbers
        self._conv_code = DTYPE_CODES[spec.conv_dtype]
        self._state_code = DTYPE_CODES[spec.state_dtype]
        self._weights = attrgetter(*weights)

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: AttentionMetadata,
        weights: GatedDeltaWeights | RgLruWeights | StateSpaceWeights,
    ) -> Tensor:
        # Rows behind the last request's are padding of the batch, if anything.
        out = torch.empty(projected.size(0), self._width, dtype=projected.dtype)
        conv, states = cache
        self._kernel(
            out.data_ptr(),
            projected.data_ptr(),
            projected.stride(0),
            conv.data_ptr(),
            conv.stride(0),
            self._conv_code,
            states.data_ptr(),
            states.stride(0),
            self._state_code,
            *sequences_of(prepared),
            *[0 if weight is None else weight.data_ptr() for weight in self._weights(weights)],
            *self._numbers,
        )
        return out


class Convolution:
    """Convolves a step's inputs and keeps the last ones of each sequence. SiLU follows; or the
    inputs have a gate in front, and one behind takes SiLU's place."""

    def __init__(self, spec: SelectiveScanSpec | ShortConvSpec, facts: DeviceFacts) -> None:
        self._kernel, self._size = kernels(facts).convolve, spec.conv_size
        self._gated = isinstance(spec, ShortConvSpec)
        self._kept = DTYPE_CODES[spec.conv_dtype]
        self._numbers = (
            spec.conv_size,
            spec.conv_width,
            spec.block_size,
            CHECKPOINT_CODES[spec.checkpoints],
            DTYPE_CODES[spec.dtype],
            self._gated,
        )

    def __call__(
        self,
        inputs: Tensor,
        cache: Tensor,
        step: AttentionMetadata,
        taps: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        """Return [num_tokens, conv_size] of inputs, whose first columns these are; float32, or the
        inputs' type between gates."""
        dtype = inputs.dtype if self._gated else torch.float32
        out = torch.empty(len(inputs), self._size, dtype=dtype)
        self._kernel(
            out.data_ptr(),
            inputs.data_ptr(),
            inputs.stride(0),
            cache.data_ptr(),
            cache.stride(0),
            self._kept,
            *sequences_of(step),
            taps.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            *self._numbers,
        )
        return out
