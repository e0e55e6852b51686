"""The question, its plain answer, and the record of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Slot

if TYPE_CHECKING:
    from torch import Tensor

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class SquaredReluSpec:
    """y = max(x, 0)² over rows [num_tokens, size], in `dtype`; x is left as it is."""

    size: int
    dtype: str


def build(spec: SquaredReluSpec, facts: DeviceFacts) -> Callable[[Tensor], Tensor]:
    """Build the reference."""

    def squared_relu(x: Tensor) -> Tensor:
        return x.float().relu().square().to(x.dtype)

    return squared_relu


SLOT = Slot(
    "squared_relu",
    SquaredReluSpec,
    f"{__name__}:build",
    "rectifier, squared",
    contract=2,
    step_bytes=lambda spec, length: 2 * spec.size * SIZES[spec.dtype],
    suite="hotshoe_squared_relu.suite:SUITE",
)
