"""Candidates `widened` and `rounding` of slot `linear`: quantized weights held as plain numbers.

For forms that no kernel here multiplies as they are stored, such as 8-bit floats. The weight is
brought to the model's type once, while it is loaded, and takes the memory of that type. `rounding`
also rounds x as the checkpoint wants it quantized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Verdict, accept, refuse, renewed
from hotshoe.slots.reference import linear as reference
from hotshoe_cpu import linear

#: Behind whoever multiplies a weight as it is stored.
SCORE = 50
BYTES = {"float32": 4, "bfloat16": 2}


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Accept weights alone."""
    if spec.activation is not None:
        return refuse(f"x would have to be rounded to {spec.activation.format} first")
    return _judge(spec, facts, "")


def supports_rounding(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Accept weights whose x is quantized too."""
    if spec.activation is None:
        return refuse("x is multiplied as it is")
    return _judge(spec, facts, f", x rounded to {spec.activation.format} by a pass of its own")


def _judge(spec: LinearSpec, facts: DeviceFacts, more: str) -> Verdict:
    if spec.weight is None:
        return refuse("the weight is plain already")
    if spec.weight.format not in reference.FORMATS or spec.weight.packing:
        return refuse(f"weights of {spec.weight} are not brought to plain numbers")
    verdict = linear.supports(_plain(spec), facts)
    if not verdict.accepted:
        return verdict
    held = f"held as {spec.dtype}, {BYTES[spec.dtype]} bytes a weight"
    return accept(SCORE, f"{verdict.reason}; {held}{more}")


def _plain(spec: LinearSpec) -> LinearSpec:
    return replace(spec, weight=None, activation=None)


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._inner = linear.Linear(_plain(spec), facts)

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        plain = {"weight": [reference.plain_weight(self._spec, tensors)]}
        self._inner.load(plain | {name: tensors[name] for name in tensors if name == "bias"})

    def state(self) -> dict[str, Tensor]:
        return self._inner.state()

    def __call__(self, x: Tensor) -> Tensor:
        return self._inner(x)

    def nbytes(self) -> int:
        return self._inner.nbytes()


class Rounding(Linear):
    """The same for an x that is rounded first."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        assert spec.activation is not None
        self._activation = spec.activation
        self._scale: Tensor | None = None

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        super().load(tensors)
        if not self._activation.dynamic:
            self._scale = renewed(self._scale, reference.common_scale(tensors["input_scale"]))

    def state(self) -> dict[str, Tensor]:
        return super().state() | ({} if self._scale is None else {"input_scale": self._scale})

    def __call__(self, x: Tensor) -> Tensor:
        return self._inner(reference.rounded(x, self._activation, self._scale).to(x.dtype))
