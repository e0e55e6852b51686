"""Candidate `native` of slot `sample`: thresholds by radix histogram, no sort."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import SampleSpec, Verdict
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports(spec: SampleSpec, facts: DeviceFacts) -> Verdict:
    """Accept every vocabulary."""
    return judge(facts, "float32")


class Sample:
    """See `hotshoe.slots.SampleOp`."""

    def __init__(self, spec: SampleSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).sample
        self._vocab_size = spec.vocab_size
        self._code = DTYPE_CODES["float32"]

    def __call__(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        uniform: Tensor,
    ) -> Tensor:
        rows = logits.size(0)
        tokens = torch.empty(rows, dtype=torch.int64)
        self._kernel(
            tokens.data_ptr(),
            logits.data_ptr(),
            temperature.data_ptr(),
            top_k.data_ptr(),
            top_p.data_ptr(),
            min_p.data_ptr(),
            uniform.data_ptr(),
            rows,
            self._vocab_size,
            logits.stride(0),
            self._code,
        )
        return tokens
