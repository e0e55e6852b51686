"""Candidate `hub` of slot `gated_activation`: a kernel of the Hugging Face Hub, by its version.

Package `kernels` finds it in the Hub's cache on disk, or loads it from the Hub. So the score is
below the reference's: it is taken only when it is asked for (`--kernel gated_activation=hub`). It
is known from its documentation, not from a run. Source: kernels-community/activation.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedActivationSpec, Verdict, accept_unless
from hotshoe_triton.packages import hindrance

SCORE = -1
DISTRIBUTION, RELEASES = "kernels", ("0.14", "0.15", "0.16", "0.17")
REPOSITORY, VERSION = "kernels-community/activation", 1
FUNCTIONS = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}
DTYPES = ("bfloat16", "float16", "float32")


def supports(spec: GatedActivationSpec, facts: DeviceFacts) -> Verdict:
    """Judge activation, element type and quantization."""
    missing = hindrance(DISTRIBUTION, RELEASES)
    refusals = {
        missing: bool(missing),
        f"activation {spec.activation} is not one of {', '.join(FUNCTIONS)}": spec.activation
        not in FUNCTIONS,
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        "its result is not quantized": spec.quant is not None,
    }
    return accept_unless(refusals, SCORE, f"{REPOSITORY} {VERSION} of the Hub, by name alone")


class GatedActivation:
    """See `hotshoe.slots.GatedActivationOp`."""

    def __init__(self, spec: GatedActivationSpec, facts: DeviceFacts) -> None:
        kernel: Any = importlib.import_module("kernels").get_kernel(REPOSITORY, version=VERSION)
        self._run, self._size = getattr(kernel, FUNCTIONS[spec.activation]), spec.size

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((len(x), self._size), dtype=x.dtype, device=x.device)
        self._run(out, x.contiguous())
        return out
