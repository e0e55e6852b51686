"""What candidates over states of sequences have in common: what they judge, and what they hand on.

The kernels read the step's block table themselves, so a step needs no plan.
"""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, GatedDeltaSpec, StateSpaceSpec, Verdict
from hotshoe_cpu.native import DTYPE_CODES, judge

#: Codes of what the cache keeps, at the kernels' boundary.
CHECKPOINT_CODES = {"none": 0, "align": 1, "all": 2}


def judge_states(
    spec: GatedDeltaSpec | StateSpaceSpec, facts: DeviceFacts, refusals: dict[str, bool]
) -> Verdict:
    """Judge what all such blocks have; `refusals` as for `judge`."""
    types = {
        f"{name} {dtype} is not one of {', '.join(DTYPE_CODES)}": dtype not in DTYPE_CODES
        for name, dtype in (("conv_dtype", spec.conv_dtype), ("state_dtype", spec.state_dtype))
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


class StepArguments:
    """Makes the kernels' first arguments: the caches of a layer, and the sequences of a step."""

    def __init__(self, spec: GatedDeltaSpec | StateSpaceSpec) -> None:
        self._codes = DTYPE_CODES[spec.conv_dtype], DTYPE_CODES[spec.state_dtype]

    def __call__(self, cache: tuple[Tensor, Tensor], step: AttentionMetadata) -> tuple[int, ...]:
        (conv, states), table = cache, step.block_table
        return (
            conv.data_ptr(),
            conv.stride(0),
            self._codes[0],
            states.data_ptr(),
            states.stride(0),
            self._codes[1],
            table.data_ptr(),
            table.stride(0),
            step.query_start_loc.data_ptr(),
            step.seq_lens.data_ptr(),
            step.num_reqs,
        )
