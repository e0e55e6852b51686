"""State-space layer: what a Mamba-2 block has between its two projections, and its states."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers.cache import Prepare, give_back
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.split import Section, Split
from hotshoe.layers.weights import Place
from hotshoe.slots import CacheView, StateSpaceOp, StateSpaceSpec, StateSpaceWeights, renewed
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.types.cache import CachePart, CacheSpec

#: Checkpoint names behind a layer's prefix, by the part of its state. `a` is -exp(A_log).
NAMES = {
    "conv": "conv1d.weight",
    "conv_bias": "conv1d.bias",
    "a": "A_log",
    "d": "D",
    "dt_bias": "dt_bias",
    "norm": "norm.weight",
}


class StateSpace:
    """One layer's convolution, scan, gate and norm over the states of its sequences.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: The whole model's; heads and groups are divided among the ranks.
        prefix: Of the checkpoint names, such as "model.layers.0.mamba.".
        conv_bias: The convolution has biases.

    Attributes:
        spec: This rank's.
        inputs: This rank's part of the rows of the projection before it: z, x, B, C and dt.
        outputs: This rank's part of the channels that the projection behind it takes.

    Raises:
        ConfigError: Heads or groups cannot be divided among the ranks.
    """

    def __init__(
        self, ctx: BuildContext, spec: StateSpaceSpec, prefix: str, conv_bias: bool
    ) -> None:
        parts = _Parts.of(ctx, spec)
        self.spec, self.inputs, self.outputs = (
            parts.own(spec, ctx.size),
            parts.inputs,
            parts.outputs,
        )
        self._columns = parts.columns
        self._op: StateSpaceOp = ctx.selector.choose("state_space", self.spec)
        self._held: dict[str, Tensor] = {}
        self._weights: StateSpaceWeights | None = None
        self._device, self._dtype = ctx.device, ctx.torch_dtype
        self._expect(ctx, spec, prefix, conv_bias, parts)
        part = self.spec
        states = (part.num_heads, part.head_dim, part.state_size)
        self.cache: tuple[Tensor, Tensor]
        self.cache_spec = CacheSpec(
            "state",
            part.block_size,
            (
                CachePart("conv", "td", (part.conv_width - 1, part.conv_size), part.conv_dtype),
                CachePart("state", "hdn", states, part.state_dtype),
            ),
            checkpoints=ctx.checkpoints,
        )
        self.planner: tuple[Hashable, Prepare] = (self.spec, self._op.prepare)
        self.view = 0
        ctx.cache_layers.append(self)
        ctx.weight_bytes.append(lambda: sum(t.nbytes for t in self._held.values()))

    def _expect(
        self, ctx: BuildContext, spec: StateSpaceSpec, prefix: str, conv_bias: bool, parts: _Parts
    ) -> None:
        """Ask for the weights, of which this rank keeps its part."""
        holder = ctx.holder("state_space", self.spec, ctx.dtype, self)
        shapes = {
            "conv": ((spec.conv_size, 1, spec.conv_width), parts.conv),
            "conv_bias": ((spec.conv_size,), parts.conv),
            "a": ((spec.num_heads,), parts.heads),
            "d": ((spec.num_heads,), parts.heads),
            "dt_bias": ((spec.num_heads,), parts.heads),
            "norm": ((spec.inner_size,), parts.inner),
        }
        left_out = {name for name, there in (("conv_bias", conv_bias),) if not there}
        left_out |= {"norm"} if spec.norm == "none" else set()
        self._wanted = set(NAMES) - left_out
        for part, name in NAMES.items():
            if part in self._wanted:
                shape, split = shapes[part]
                place = Place(holder, part, (0, split.size), ())
                sink = partial(self._take, part, split)
                ctx.weights.expect(prefix + name, shape, sink, place=place)

    def _take(self, part: str, split: Split, tensor: Tensor) -> None:
        """Keep this rank's rows of a weight in the type in which it is used."""
        own = torch.cat([tensor[rows] for rows in split.within(0, len(tensor))])
        if part == "a":
            own = -torch.exp(own.float())
        dtype = torch.float32 if part in ("a", "d", "dt_bias") else self._dtype
        fresh = own.flatten(1) if own.dim() > 1 else own
        self._held[part] = renewed(self._held.get(part), fresh.to(self._device, dtype, copy=True))
        if set(self._held) == self._wanted:
            held: dict[str, Tensor | None] = {name: self._held.get(name) for name in NAMES}
            self._weights = StateSpaceWeights(**held)  # type: ignore[arg-type]

    def state(self) -> dict[str, Tensor]:
        """Return the weights of this rank, as `StateSpaceWeights` names them."""
        return self._held

    def allocate_cache(self, num_blocks: int) -> None:
        """Take memory for states, left as it comes: none is read before it is written."""
        conv, state = (
            torch.empty(
                (num_blocks, *part.shape), dtype=torch_dtype(part.dtype), device=self._device
            )
            for part in self.cache_spec.parts
        )
        self.cache = (conv, state)

    def share_cache(self, other: StateSpace) -> None:
        """Use another layer's states, whose blocks have equal parts."""
        self.cache = other.cache

    def free_cache(self) -> None:
        """Give the memory back, though an operation may remember the tensors."""
        for part in self.cache:
            give_back(part)
        del self.cache

    def __call__(self, projected: Tensor, batch: ForwardBatch) -> Tensor:
        """Map projected [num_tokens, inner_size + conv_size + num_heads], which may be overwritten,
        to [num_tokens, outputs.size]."""
        if batch.between is not None:
            out = batch.between(projected, self._run, self.spec.inner_size)
        else:
            out = self._run(projected, batch.views)
        return out if self.outputs.size == self.spec.inner_size else out[:, self._columns]

    def _run(self, projected: Tensor, views: Sequence[CacheView]) -> Tensor:
        assert self._weights is not None
        return self._op(projected, self.cache, views[self.view].prepared, self._weights)


@dataclass(frozen=True, slots=True)
class _Parts:
    """One rank's part of a block: of its heads, of the channels of x, of those of B and of C."""

    heads: Split
    inner: Split
    inputs: Split
    conv: Split
    outputs: Split

    @classmethod
    def of(cls, ctx: BuildContext, spec: StateSpaceSpec) -> _Parts:
        """Divide heads; where there is a norm, by groups of channels that are normed together.

        Several ranks compute the same group where there are more ranks than groups.

        Raises:
            ConfigError: Heads or groups cannot be divided among the ranks.
        """
        split: Callable[..., Split] = partial(ctx.split, "state-space heads")
        if spec.norm == "none":
            heads, inner = Section(spec.num_heads), Section(spec.num_heads, spec.head_dim)
            group = Section(spec.num_groups, spec.state_size, shared=True)
        else:
            parts, widths = spec.norm_groups, (spec.num_heads, spec.inner_size, spec.group_size)
            heads, inner, group = (Section(parts, n // parts, shared=True) for n in widths)
        return cls(
            split(heads),
            split(inner),
            split(inner, inner, group, group, heads),
            split(inner, group, group),
            split(Section(spec.num_heads, spec.head_dim)),
        )

    def own(self, spec: StateSpaceSpec, size: int) -> StateSpaceSpec:
        """Return the specification of this part, one of `size`."""
        group = (self.conv.size - self.inner.size) // 2
        return replace(
            spec,
            num_heads=self.heads.size,
            num_groups=group // spec.state_size,
            norm_groups=max(spec.norm_groups // size, 1),
        )

    @property
    def columns(self) -> slice:
        """Which of the channels that this rank computes go into the projection behind."""
        [(begin, end)], [(first, _)] = self.outputs.ranges, self.inner.ranges
        return slice(begin - first, end - first)
