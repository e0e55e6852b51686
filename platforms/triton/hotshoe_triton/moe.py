"""Candidates of slot `moe`: pairs of tokens and experts, ordered by expert without the host.

Few tokens, whose experts differ anyway, are computed pair by pair. Otherwise each expert's matrices
are multiplied with blocks of its tokens. All launches follow from the number of tokens alone, so
that steps are recorded; `Plan` says which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, MoeSpec, Placement, ProductChange, RouterSpec, Verdict
from hotshoe.slots.reference import accepts
from hotshoe.slots.reference import router as reference
from hotshoe_triton import experts
from hotshoe_triton.device import KIB, arch_of, chaining, judge, next_power_of_2

#: Bounds of what one program holds of a token's logits, and of offsets into an expert's matrix.
MAX_EXPERTS, MAX_ELEMENTS = 4096, 1 << 31
#: Tokens are computed pair by pair while so large a share of their experts is expected to differ.
DIFFERENT = 0.9
#: A block has room for so many times the pairs that an expert expects, while few.
ROOM = 1.5
#: Columns of a program of `combine`, and pairs that one of `arrange` looks at.
COMBINED, ARRANGED = 1024, 4096
#: Of `grouped` where sums stay what they are.
PLAIN = {"GATED": False, "ACTIVATION": "none", "LIMIT": None, "GATE_LIMIT": None}
PLAIN |= {"ALPHA": 1.0, "SHIFT": 0.0}


def supports(spec: MoeSpec, facts: DeviceFacts) -> Verdict:
    """Judge operands and sizes; activation and router as core's reference does."""
    known = accepts.supports(spec, facts)
    if not known.accepted:
        return known
    plain = spec.gate_up.weight is None, spec.down.weight is None
    return judge(
        facts,
        spec.dtype,
        refusals(spec, experts.refusals)
        | {"one of an expert's matrices is quantized and one is not": plain[0] != plain[1]},
    )


def refusals(
    spec: MoeSpec, judge_form: Callable[[str, LinearSpec], dict[str, bool]]
) -> dict[str, bool]:
    """Return what a mixture must not be, and whether it is.

    Args:
        judge_form: Returns the same of a matrix's form, given its name.
    """
    found = {f"there are more than {MAX_EXPERTS} experts": spec.num_experts > MAX_EXPERTS}
    for name, side in (("gate_up", spec.gate_up), ("down", spec.down)):
        found |= judge_form(name, side)
        types = {side.dtype, side.out_dtype or side.dtype}
        found |= {
            f"{name} is of type {side.dtype} and its results of type {side.out_dtype}, not both "
            f"of type {spec.dtype}": types != {spec.dtype},
            f"{name} has {MAX_ELEMENTS} elements or more": side.in_features * side.out_features
            >= MAX_ELEMENTS,
        }
    return found


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel's program is cut; `pairs` is 0 for kernels that go pair by pair.

    Attributes:
        pairs, rows, columns: Pairs, rows of the matrix, and columns of it at a time; 0 for packed
            matrices, whose form says how many.
        warps, stages: Triton's num_warps and num_stages; pair by pair, loops unroll by stages.
    """

    pairs: int
    rows: int
    columns: int
    warps: int
    stages: int

    def constants(self) -> dict[str, int]:
        """Return the kernel's constants."""
        found = {"BLOCK_N": self.rows, "num_warps": self.warps}
        if self.columns:
            found["BLOCK_K"] = self.columns
        if not self.pairs:
            return found | {"UNROLL": self.stages}
        return found | {"BLOCK_M": self.pairs, "num_stages": self.stages}


@dataclass(frozen=True, slots=True)
class Plan:
    """How a number of tokens is computed: tiles of both products, both of as many pairs."""

    first: Tile
    second: Tile


def experts_read(tokens: int, spec: MoeSpec) -> float:
    """Return how many experts so many tokens are expected to choose."""
    missed = (1 - spec.top_k / spec.num_experts) ** tokens
    return float(spec.num_experts * (1 - missed))


def plan_for(tokens: int, spec: MoeSpec, facts: DeviceFacts) -> Plan:
    """Choose by what it costs to read the experts that tokens are expected to choose."""
    pairs, read = tokens * spec.top_k, experts_read(tokens, spec)
    if spec.gate_up.weight is not None:
        return _packed(pairs / read, spec, facts)
    if read >= DIFFERENT * pairs and spec.held is None:
        return Plan(_alone(spec.down.in_features, spec.gate_up.in_features, spec.gated),
                    _alone(spec.down.out_features, spec.down.in_features, False))  # fmt: skip
    return _blocks(pairs / read, spec, facts)


def one_tile(spec: MoeSpec, facts: DeviceFacts) -> Plan:
    """Return the plan for any number of tokens that computes each row in the same way."""
    return (_blocks if spec.gate_up.weight is None else _packed)(32.0, spec, facts)


def _alone(rows: int, columns: int, halved: bool) -> Tile:
    """Return the tile of a matrix that programs stream through registers.

    Programs of a row, all of whose loads are on their way at once, let most wait for memory.
    """
    block_k = min(next_power_of_2(columns), 1024 if halved else 256)
    while columns % block_k and block_k > 128:
        block_k //= 2
    if not halved:
        return Tile(0, 1, block_k, 1, 24)
    together = 1 if block_k == 1024 else 2048 // block_k
    return Tile(0, min(next_power_of_2(rows), together), block_k, 4, 2)


def _blocks(expected: float, spec: MoeSpec, facts: DeviceFacts) -> Plan:
    """Return tiles for experts that expect so many pairs each."""
    arch = arch_of(facts)
    cuda, itemsize = arch.backend == "cuda", 4 if spec.dtype == "float32" else 2
    largest = 128 if cuda and itemsize == 2 else 64
    pairs = min(largest, max(16, next_power_of_2(int(expected * ROOM))))
    many = pairs == 128
    bytes_k = 128 if arch.shared_bytes > 100 * KIB else 64

    def tile(halves: int) -> Tile:
        rows = 256 // halves if many else 64 if cuda else 32
        columns = bytes_k // itemsize
        stage_bytes = (halves * rows + pairs) * columns * itemsize
        fit = (arch.shared_bytes - 8 * KIB) // stage_bytes
        stages = max(2, min(2 + halves if many else 4, fit)) if cuda else 2
        return Tile(pairs, rows, columns, 8 if many else 4, stages)

    return Plan(tile(1 + spec.gated), tile(1))


def _packed(expected: float, spec: MoeSpec, facts: DeviceFacts) -> Plan:
    """Return tiles of packed matrices for experts that expect so many pairs each."""
    cuda = arch_of(facts).backend == "cuda"
    pairs = min(64 if cuda else 32, max(16, next_power_of_2(int(expected * ROOM))))

    tile = Tile(pairs, 64 if cuda else 32, 0, 4, 4 if cuda and spec.dtype != "float32" else 2)
    return Plan(tile, tile)


class _Matrices:
    """One matrix of every expert, stacked.

    Attributes:
        weight: [num_experts, rows, columns]; empty before the first expert comes.
        bias: [num_experts, rows], or empty.
    """

    def __init__(self, spec: LinearSpec, experts: int, facts: DeviceFacts) -> None:
        self._spec, self._experts, self._device = spec, experts, facts.device
        self.weight, self.bias = self._room(0), self._room(0)

    def _room(self, *shape: int) -> Tensor:
        dtype: torch.dtype = getattr(torch, self._spec.dtype)
        return torch.empty(shape, dtype=dtype, device=self._device)

    def load(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Copy one expert's parts to their place."""
        spec = self._spec
        if not self.weight.numel():
            self.weight = self._room(self._experts, spec.out_features, spec.in_features)
            self.bias = self._room(self._experts if spec.bias else 0, spec.out_features)
        for name, held in self.state().items():
            row = 0
            for part in tensors[name]:
                held[expert, row : row + len(part)].copy_(part)
                row += len(part)

    def operands(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return x, weight and bias as kernels take them: some tensor where there is no bias."""
        return x, self.weight, self.bias if self.bias.numel() else self.weight

    def constants(self) -> dict[str, Any]:
        """Return the kernel's constants of the form: none."""
        return {}

    def state(self) -> dict[str, Tensor]:
        held = {"weight": self.weight, "bias": self.bias}
        return {name: tensor for name, tensor in held.items() if tensor.numel()}


class Router:
    """Chooses experts: by one kernel, or for "sparsemixer" as core's reference does."""

    def __init__(self, spec: MoeSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.moe import choose

        self._kernel, self._top_k, self._spec = choose, spec.top_k, spec.router
        self._constants = _choice(spec.num_experts, spec.top_k, spec.router) | chaining(facts)

    def __call__(self, logits: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return weights [num_tokens, top_k] float32 and ids [num_tokens, top_k] int32."""
        if self._spec.scoring == "sparsemixer":
            weights, ids = reference.route(logits, correction, self._top_k, self._spec)
            return weights.contiguous(), ids.to(torch.int32)
        shape, device = (len(logits), self._top_k), logits.device
        weights = torch.empty(shape, dtype=torch.float32, device=device)
        ids = torch.empty(shape, dtype=torch.int32, device=device)
        moved = logits if correction is None else correction
        self._kernel[(len(logits),)](
            ids, weights, logits, moved, logits.stride(0), **self._constants
        )
        return weights, ids


def _choice(experts: int, top_k: int, router: RouterSpec) -> dict[str, Any]:
    """Return the constants of the choice."""
    return {
        "EXPERTS": experts,
        "TOP_K": top_k,
        "SIGMOID": router.scoring == "sigmoid",
        "SOFTPLUS": router.scoring == "sqrtsoftplus",
        "CORRECTION": router.correction,
        "RENORMALIZE": router.renormalize,
        "SCALE": router.scale,
        "GROUPS": router.groups,
        "KEPT": router.groups_kept,
        "TOP2": router.group_score == "top2",
        "BLOCK_G": next_power_of_2(router.groups),
        "BLOCK_S": next_power_of_2(experts // router.groups),
        "BLOCK_C": next_power_of_2(top_k),
        "num_warps": max(1, min(8, next_power_of_2(experts) // 256)),
    }


class Moe:
    """See `hotshoe.slots.RecordableMoeOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        plan: For every number of tokens; None chooses for each.
    """

    recordable = True

    def __init__(self, spec: MoeSpec, facts: DeviceFacts, plan: Plan | None = None) -> None:
        from hotshoe_triton.kernels import moe

        self._kernels, self._spec, self._facts, self.plan = moe, spec, facts, plan
        self._grouped, kind = self._form()
        self._gate_up = kind(spec.gate_up, spec.places, facts)
        self._down = kind(spec.down, spec.places, facts)
        self._route = Router(spec, facts)
        self._chain = chaining(facts)
        self._inner_size, self._size = spec.down.in_features, spec.down.out_features
        self._inner = {
            "GATED": spec.gated,
            "ACTIVATION": spec.activation,
            "LIMIT": spec.limit,
            "GATE_LIMIT": spec.limit if spec.gate_limit is None else spec.gate_limit,
            "ALPHA": spec.alpha,
            "SHIFT": spec.shift,
        }

    def _form(self) -> tuple[Any, Any]:
        """Return the kernel that multiplies blocks of pairs, and what makes its matrices."""
        from hotshoe_triton.kernels import experts as packed

        if self._spec.gate_up.weight is None:
            return self._kernels.grouped, _Matrices
        return packed.grouped_packed, experts.PackedMatrices

    def _programs(self, tile: Tile, rows: int, gated: bool) -> int:
        """Return how many programs share a block's results of so many rows."""
        return -(-rows // tile.rows)

    def _plan_for(self, tokens: int) -> Plan:
        return self.plan or plan_for(tokens, self._spec, self._facts)

    def load_gate_up(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._gate_up.load(expert, tensors)

    def load_down(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._down.load(expert, tensors)

    def state(self) -> dict[str, Tensor]:
        parts = {"gate_up": self._gate_up.state(), "down": self._down.state()}
        return {f"{part}.{name}": t for part, held in parts.items() for name, t in held.items()}

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state().values())

    def __call__(
        self,
        x: Tensor,
        logits: Tensor,
        correction: Tensor | None,
        placement: Placement | None = None,
    ) -> Tensor:
        y = x.new_empty(len(x), self._size)
        if not len(x):
            return y
        weights, ids = self._chosen(logits, correction, placement)
        plan = self._plan_for(len(x))
        if plan.first.pairs:
            self._by_expert(plan, y, x, weights, ids)
        else:
            inner = x.new_empty(ids.numel(), self._inner_size)
            self._by_pair(plan, y, x, inner, weights, ids)
        return y

    def adapted(
        self,
        x: Tensor,
        logits: Tensor,
        correction: Tensor | None,
        placement: Placement | None,
        between: ProductChange,
    ) -> Tensor:
        """See `hotshoe.slots.AdaptableMoeOp`. It never goes pair by pair."""
        y = x.new_empty(len(x), self._size)
        if not len(x):
            return y
        weights, ids = self._chosen(logits, correction, placement)
        plan = self._plan_for(len(x))
        if not plan.first.pairs:
            plan = _blocks(1.0, self._spec, self._facts)
        self._by_expert(plan, y, x, weights, ids, between)
        return y

    def _chosen(
        self, logits: Tensor, correction: Tensor | None, placement: Placement | None
    ) -> tuple[Tensor, Tensor]:
        """Return weights and places of each token's experts."""
        weights, ids = self._route(logits, correction)
        return weights, ids if placement is None else reference.placed(ids.long(), placement)

    def _by_pair(
        self, plan: Plan, y: Tensor, x: Tensor, inner: Tensor, weights: Tensor, ids: Tensor
    ) -> None:
        """Compute each pair by itself, and write y."""
        grids = [
            (pairs, -(-rows // tile.rows))
            for pairs, rows, tile in (
                (ids.numel(), self._inner_size, plan.first),
                (len(x), self._size, plan.second),
            )
        ]
        self._kernels.first_alone[grids[0]](
            inner, *self._gate_up.operands(x), ids, x.stride(0),
            **self._sizes(True), **self._inner, **plan.first.constants(), **self._chain,
        )  # fmt: skip
        self._kernels.second_alone[grids[1]](
            y, *self._down.operands(inner), ids, weights,
            **self._sizes(False), **plan.second.constants(), **self._chain,
        )  # fmt: skip

    def _by_expert(
        self,
        plan: Plan,
        y: Tensor,
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        between: ProductChange | None = None,
    ) -> None:
        """Compute blocks of each expert's pairs, and write y."""
        pairs, count, top_k = ids.numel(), self._spec.places, self._spec.top_k
        blocks = pairs // plan.first.pairs + count
        order = ids.new_empty(pairs)
        # Pairs of experts on other ranks get no block, and results of zero.
        elsewhere = self._spec.held is not None
        room = x.new_zeros if elsewhere else x.new_empty
        cut = ids.new_full((blocks, 3), -1) if elsewhere else ids.new_empty(blocks, 3)
        self._kernels.arrange[(count,)](
            order, cut, ids, pairs, BLOCK_M=plan.first.pairs,
            BLOCK_P=min(ARRANGED, max(128, next_power_of_2(pairs))), num_warps=4, **self._chain,
        )  # fmt: skip

        def multiply(first: bool, made: Tensor, source: Tensor, inside: Mapping[str, Any]) -> None:
            tile, held = (plan.first, self._gate_up) if first else (plan.second, self._down)
            rows, operands = made.size(1), held.operands(source)
            self._grouped[(blocks * self._programs(tile, rows, inside["GATED"]),)](
                made, *operands, order, cut, operands[0].stride(0), FIRST=first,
                SORTED=between is None, **(self._sizes(first) | {"N": rows}), **inside,
                **held.constants(), **tile.constants(), **self._chain,
            )  # fmt: skip

        inner = x.new_empty(pairs, self._inner_size)
        if between is None:
            multiply(True, inner, x, self._inner)
        else:  # rows are in the order of pairs, which needs no look at what tokens chose
            of_rows = torch.arange(pairs, device=x.device) // top_k, ids.flatten()
            repeated = x.unsqueeze(1).expand(-1, top_k, -1).flatten(0, 1)
            wide = room(pairs, self._spec.gate_up.out_features)
            multiply(True, wide, x, PLAIN)
            between("gate_up", wide, repeated, *of_rows)
            block = min(COMBINED, next_power_of_2(self._inner_size))
            self._kernels.inner_rows[(pairs, -(-self._inner_size // block))](
                inner, wide, N=self._inner_size, BLOCK_N=block, **self._inner, **self._chain
            )
            del wide
        results = room(pairs, self._size)
        multiply(False, results, inner, PLAIN)
        if between is not None:
            between("down", results, inner, *of_rows)
        block = min(COMBINED, next_power_of_2(self._size))
        self._kernels.combine[(len(x), -(-self._size // block))](
            y, results, weights, N=self._size, TOP_K=top_k, BLOCK_N=block,
            num_warps=max(1, block // 256), **self._chain,
        )  # fmt: skip

    def _sizes(self, first: bool) -> dict[str, Any]:
        """Return the constants that say what one of the two matrices is."""
        side = self._spec.gate_up if first else self._spec.down
        rows = self._inner_size if first else self._size
        return {"N": rows, "K": side.in_features, "TOP_K": self._spec.top_k, "BIAS": side.bias}
