"""Candidate `native` of slot `moe`: one kernel call from the router's logits to the weighted sum.

Steps with adapters of experts multiply expert by expert, with the same packed matrices.

Experts' matrices are packed as those of `hotshoe_cpu.linear`, one behind the other. Plain gates
multiply inside the product that computes them; clamped and other ones are a pass of their own.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, MoeSpec, Placement, ProductChange, Verdict, refuse, renewed
from hotshoe.slots.reference import moe as reference
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe_cpu import linear
from hotshoe_cpu.activation import ACTIVATION_CODES
from hotshoe_cpu.native import judge, kernels

KINDS = {**ACTIVATION_CODES, "relu2": 3}
SCORINGS = {"softmax": 0, "sigmoid": 1, "sqrtsoftplus": 2, "sparsemixer": 3}
GROUP_COUNTS = {"max": 1, "top2": 2}
#: Experts lie this many bytes apart, or a multiple.
ALIGNMENT = 64
#: Rows of a packed block. Of gates and ups that are packed side by side, blocks take turns.
BLOCK_ROWS = 16
#: All experts have matrices here, each at the place of its number.
HERE = (-1, 1, 0, 0)


def supports(spec: MoeSpec, facts: DeviceFacts) -> Verdict:
    """Judge both products, the activation and the router."""
    for name, part in (("gate_up", spec.gate_up), ("down", spec.down)):
        verdict = linear.supports(part, facts)
        if not verdict.accepted:
            return refuse(f"{name}: {verdict.reason}")
    router = spec.router
    refusals = {
        f"activation {spec.activation} is unknown": spec.activation not in KINDS,
        f"scoring {router.scoring} is unknown": router.scoring not in SCORINGS,
        f"group score {router.group_score} is unknown": router.group_score not in GROUP_COUNTS,
        f"alpha goes with silu, not with {spec.activation}": spec.alpha != 1.0
        and spec.activation != "silu",
    }
    return judge(facts, spec.dtype, refusals)


class _Matrices:
    """One matrix of every expert, packed, with its biases.

    Attributes:
        fused: Gates and ups are packed side by side.
    """

    def __init__(self, spec: LinearSpec, experts: int, facts: DeviceFacts, fused: bool) -> None:
        self._native, self._spec, self._experts = kernels(facts), spec, experts
        self.fused = fused
        self.code = linear.CODES[torch.int8 if spec.weight else torch_dtype(spec.dtype)]
        sizes = (self.code, spec.out_features, spec.in_features)
        nbytes = self._native.linear_packed_nbytes(*sizes, fused)
        self.stride = -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.packed = torch.empty(0, dtype=torch.uint8)
        self.bias: Tensor | None = None

    def load(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Pack one expert's parts, as `linear.Linear` does those of a matrix."""
        if not self.packed.numel():
            nbytes = self.stride * self._experts
            self.packed = torch.empty(nbytes, dtype=torch.uint8)
            self._native.advise_huge_pages(self.packed.data_ptr(), nbytes)
        spec = self._spec
        address = self.packed.data_ptr() + expert * self.stride
        place = (self.code, address, spec.out_features, spec.in_features)
        linear.pack(self._native, place, tensors, self.fused)
        if "bias" in tensors:
            if self.bias is None:
                self.bias = torch.zeros(self._experts, spec.out_features)
            renewed(self.bias[expert], torch.cat([part.float() for part in tensors["bias"]]))

    def multiply(self, expert: int, x: Tensor) -> Tensor:
        """Return one expert's products of x [n, in_features], gates in front of ups."""
        rows, halves = self._spec.out_features, 1 + self.fused
        padded = -(-rows // halves // BLOCK_ROWS) * BLOCK_ROWS * halves if self.fused else rows
        y = torch.empty(len(x), padded, dtype=x.dtype)
        self._native.linear(
            self.code,
            self.packed.data_ptr() + expert * self.stride,
            padded,
            self._spec.in_features,
            len(x),
            linear.CODES[x.dtype],
            x.data_ptr(),
            x.stride(0),
            0,
            linear.CODES[x.dtype],
            y.data_ptr(),
            padded,
            linear.NO_GATE,
        )
        if self.fused:
            turns = y.view(len(x), -1, halves, BLOCK_ROWS).transpose(1, 2)
            y = turns.reshape(len(x), halves, -1)[..., : rows // halves].flatten(1)
        return y if self.bias is None else y.add_(self.bias[expert])

    def state(self) -> dict[str, Tensor]:
        held = {"packed": self.packed} if self.packed.numel() else {}
        return held if self.bias is None else held | {"bias": self.bias}

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state().values())

    def addresses(self) -> tuple[int, int, int]:
        """Return where the first expert's weight lies, how far the next one's is, and the bias."""
        bias = 0 if self.bias is None else self.bias.data_ptr()
        return self.packed.data_ptr(), self.stride, bias


class Moe:
    """See `hotshoe.slots.MoeOp`."""

    def __init__(self, spec: MoeSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).moe
        self._spec, self._dtype = spec, torch_dtype(spec.dtype)
        clamps = spec.limit is not None or spec.gate_limit is not None
        plain = spec.gated and not clamps and (spec.alpha, spec.shift) == (1.0, 0.0)
        fused = plain and spec.activation in ACTIVATION_CODES
        self._gate_up = _Matrices(spec.gate_up, spec.places, facts, fused)
        self._down = _Matrices(spec.down, spec.places, facts, False)
        self._hidden = spec.down.out_features
        router = spec.router
        self._router = (
            spec.num_experts,
            spec.top_k,
            SCORINGS[router.scoring],
            router.renormalize,
            router.scale,
            router.groups,
            router.groups_kept,
            GROUP_COUNTS[router.group_score],
        )
        limit = inf if spec.limit is None else spec.limit
        self._inner = (KINDS[spec.activation], spec.gated, limit, spec.alpha, spec.shift)
        self._last = (spec.gate_limit or 0.0, router.jitter)

    def load_gate_up(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._gate_up.load(expert, tensors)

    def load_down(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._down.load(expert, tensors)

    def state(self) -> dict[str, Tensor]:
        parts = {"gate_up": self._gate_up.state(), "down": self._down.state()}
        return {f"{part}.{name}": t for part, held in parts.items() for name, t in held.items()}

    def __call__(
        self,
        x: Tensor,
        logits: Tensor,
        correction: Tensor | None,
        placement: Placement | None = None,
    ) -> Tensor:
        tokens = x.size(0)
        y = torch.empty(tokens, self._hidden, dtype=self._dtype)
        first, second = self._gate_up, self._down
        held = HERE if placement is None else (self._spec.places, *_addresses(placement))
        self._kernel(
            first.code,
            *first.addresses(),
            self._spec.gate_up.out_features,
            first.fused,
            *second.addresses(),
            self._hidden,
            self._spec.down.in_features,
            *self._router,
            0 if correction is None else correction.data_ptr(),
            *self._inner,
            tokens,
            linear.CODES[self._dtype],
            x.data_ptr(),
            x.stride(0),
            logits.data_ptr(),
            y.data_ptr(),
            *held,
            *self._last,
        )
        return y

    def adapted(
        self,
        x: Tensor,
        logits: Tensor,
        correction: Tensor | None,
        placement: Placement | None,
        between: ProductChange,
    ) -> Tensor:
        """See `hotshoe.slots.AdaptableMoeOp`."""
        first, second = (
            [partial(matrices.multiply, expert) for expert in range(self._spec.places)]
            for matrices in (self._gate_up, self._down)
        )
        router = (logits, correction)
        return reference.by_expert(self._spec, (first, second), x, router, placement, between)

    def nbytes(self) -> int:
        return self._gate_up.nbytes() + self._down.nbytes()


def _addresses(placement: Placement) -> tuple[int, int, int]:
    """Return the number of turns, and where the table and the counts lie, 0 for none."""
    counts = 0 if placement.counts is None else placement.counts.data_ptr()
    return len(placement.table), placement.table.data_ptr(), counts
