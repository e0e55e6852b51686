"""Quantized weights held as plain numbers, for kernels that multiply plain ones alone.

For forms that no kernel of a platform multiplies as they are stored. The weight is brought to the
model's type once, while it is loaded, and takes the memory of that type. x may have to be rounded,
as the checkpoint wants it quantized. A platform makes its candidates `widened` and `rounding` of a
kernel that it has: each function here takes the like of that kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import LinearOp, renewed
from hotshoe.slots.specs import LinearSpec
from hotshoe.slots.verdict import Decision, Verdict, accept, refuse

if TYPE_CHECKING:
    from torch import Tensor


Supports = Callable[[LinearSpec, DeviceFacts], Verdict]
Build = Callable[[LinearSpec, DeviceFacts], LinearOp]
#: Behind every kernel that multiplies a weight as it is stored, those that go by name included.
SCORE = 10
#: What verdicts of such kernels say.
HELD = "held as "
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def supports(judge_plain: Supports) -> Supports:
    """Return what judges weights alone as a kernel judges plain ones."""

    def judge(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
        if spec.activation is not None:
            return refuse(f"x would have to be rounded to {spec.activation.format} first")
        return _judge(spec, judge_plain(_plain(spec), facts), "")

    return judge


def supports_rounding(judge_plain: Supports) -> Supports:
    """Return what judges weights whose x is quantized too."""

    def judge(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
        if spec.activation is None:
            return refuse("x is multiplied as it is")
        if spec.activation.format == "fp4_e2m1":
            return refuse("x in 4-bit floats gains nothing where they are not multiplied as such")
        if spec.weight is not None and spec.activation.format != spec.weight.format:
            return refuse(f"{spec.weight.format} is multiplied packed, by x as it is")
        more = f", x rounded to {spec.activation.format} by a pass of its own"
        return _judge(spec, judge_plain(_plain(spec), facts), more)

    return judge


def holds_plain(said: Verdict | Decision) -> bool:
    """Tell whether a kernel said that it holds quantized weights as plain numbers."""
    return HELD in said.reason


def linear(kernel: Build) -> type[Any]:
    """Return an operation over a kernel's for plain weights."""
    from hotshoe.slots.reference.linear import plain_weight

    class Linear:
        """See `hotshoe.slots.LinearOp`."""

        def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
            self._spec, self._device = spec, facts.device
            self._inner = kernel(_plain(spec), facts)

        def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
            here = {name: [t.to(self._device) for t in parts] for name, parts in tensors.items()}
            plain = {"weight": [plain_weight(self._spec, here)]}
            self._inner.load(plain | {name: here[name] for name in here if name == "bias"})

        def state(self) -> Mapping[str, Tensor]:
            return self._inner.state()

        def __call__(self, x: Tensor) -> Tensor:
            return self._inner(x)

        def nbytes(self) -> int:
            return self._inner.nbytes()

    return Linear


def rounding(kernel: Build) -> type[Any]:
    """Return the same for an x that is rounded first."""
    from hotshoe.slots.reference.linear import common_scale, rounded

    class Rounding(linear(kernel)):  # type: ignore[misc]
        """See `hotshoe.slots.LinearOp`."""

        def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
            super().__init__(spec, facts)
            assert spec.activation is not None
            self._activation = spec.activation
            self._scale: Tensor | None = None

        def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
            super().load(tensors)
            if not self._activation.dynamic:
                scale = common_scale(tensors["input_scale"]).to(self._device)
                self._scale = renewed(self._scale, scale)

        def state(self) -> Mapping[str, Tensor]:
            more = {} if self._scale is None else {"input_scale": self._scale}
            return {**super().state(), **more}

        def __call__(self, x: Tensor) -> Tensor:
            kept: Tensor = rounded(x, self._activation, self._scale).to(x.dtype)
            return super().__call__(kept)  # type: ignore[no-any-return]

    return Rounding


def _judge(spec: LinearSpec, verdict: Verdict, more: str) -> Verdict:
    from hotshoe.slots.reference.linear import FORMATS

    if spec.weight is None:
        return refuse("the weight is plain already")
    if spec.weight.format not in FORMATS or spec.weight.packing:
        return refuse(f"weights of {spec.weight} are not brought to plain numbers")
    if not verdict.accepted:
        return verdict
    held = f"{HELD}{spec.dtype}, {BYTES[spec.dtype]} bytes a weight"
    return accept(SCORE, f"{verdict.reason}; {held}{more}")


def _plain(spec: LinearSpec) -> LinearSpec:
    return replace(spec, weight=None, activation=None)
