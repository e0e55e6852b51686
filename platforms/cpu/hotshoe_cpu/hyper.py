"""Candidate `native` of slot `hyper_connection`: in C++, float32 inside."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import HyperConnectionSpec, Verdict
from hotshoe.slots.reference import accepts
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports(spec: HyperConnectionSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    known = accepts.supports(spec, facts)
    return judge(facts, spec.dtype) if known.accepted else known


class HyperConnection:
    """See `hotshoe.slots.HyperConnectionOp`."""

    def __init__(self, spec: HyperConnectionSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).hyper_connection
        self._gates = spec.gates
        self._numbers = (
            spec.count,
            spec.hidden_size,
            spec.iterations,
            spec.eps,
            spec.norm_eps,
            spec.magnitude,
            spec.mixes,
            spec.ends,
            DTYPE_CODES[spec.dtype],
        )

    def __call__(
        self,
        streams: Tensor,
        block: tuple[Tensor, Tensor] | None,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, _, size = shape = streams.size()
        taken = torch.empty(tokens, size, dtype=streams.dtype)
        gates = torch.empty(tokens, self._gates, dtype=torch.float32)
        joined, beside = streams, (0, 0, 0, 0)
        if block is not None:
            joined = torch.empty(*shape, dtype=streams.dtype)
            out, before = block
            beside = (out.data_ptr(), out.stride(0), before.data_ptr(), before.stride(0))
        self._kernel(
            joined.data_ptr(),
            taken.data_ptr(),
            gates.data_ptr(),
            streams.data_ptr(),
            streams.stride(0),
            streams.stride(1),
            *beside,
            fn.data_ptr(),
            base.data_ptr(),
            scale.data_ptr(),
            tokens,
            *self._numbers,
        )
        return joined, taken, gates
