"""One or several checkpoint matrices, stacked by rows, on their way into an operation.

With tensor parallelism a matrix is split by its outputs (rows of W; each rank computes a part of
y) or by its inputs (columns of W; each rank computes a summand of y, and the ranks add up).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers.context import BuildContext
from hotshoe.layers.formats import (
    PLAIN,
    Share,
    Storage,
    TensorSpec,
    bias_spec,
    stored_alike,
    stored_otherwise,
)
from hotshoe.layers.linear_adapters import AdaptedLinear, adapted_linear
from hotshoe.layers.magnitudes import Base
from hotshoe.layers.split import Split
from hotshoe.layers.weights import Holder, Place, Sink
from hotshoe.slots import LinearOp, LinearSpec
from hotshoe.slots.reference.linear import plain_weight
from hotshoe.slots.wide_weights import holds_plain

#: Rows that are measured at once: their copy stays in a processor's cache.
ROWS = 256
#: Why matrices that some kernel would take packed are plain numbers.
MIXED = "as those multiplied together with it are stored in another form"
Load = Callable[[Mapping[str, Sequence[Tensor]]], None]


class Matrix:
    """Checkpoint matrices stacked by rows, such as q, k and v: this rank's part of them.

    Args:
        ctx: The build context.
        parts: Checkpoint prefixes and their output sizes, in row order.
        in_features: Input size.
        bias: The parts have biases.
        quantize: False keeps them out of quantization, as model data demands.
        outputs: This rank's part of the stacked rows; None for all.
        inputs: This rank's part of x; the ranks' results are then added. None for all.
        transposed: A checkpoint of plain numbers has W as [in_features, out_features].

    Attributes:
        spec: What computes with this rank's part.
        native: Another, which a kernel for it may be asked for instead; None if there is none.
    """

    def __init__(
        self,
        ctx: BuildContext,
        parts: Sequence[tuple[str, int]],
        in_features: int,
        *,
        bias: bool = False,
        quantize: bool = True,
        outputs: Split | None = None,
        inputs: Split | None = None,
        transposed: bool = False,
    ) -> None:
        self._format, stored = stored_alike(ctx.format if quantize else PLAIN, parts, in_features)
        self._parts, self._in_features, self._bias = parts, in_features, bias
        asked = ctx.format.storage if quantize and stored is None else None
        each = {} if asked is None else {n: asked(n, (rows, in_features)) for n, rows in parts}
        self._mixed = any(each.values())
        #: How each part is stored, if several of them are only together as plain numbers.
        self._apart = each if self._format is not PLAIN else {}
        self._transposed = transposed
        self._outputs = outputs or Split(((0, sum(size for _, size in parts)),))
        self._adds = inputs is not None and ctx.communicator is not None
        inputs = inputs or Split(((0, in_features),))
        own_bias = bias and (ctx.rank == 0 or not self._adds)  # added once
        plain = LinearSpec(inputs.size, self._outputs.size, ctx.dtype, bias=own_bias)
        self.spec = plain if stored is None else _stored_so(plain, stored)
        self._left = stored and stored.left
        native = stored and stored.native
        self.native = None if native is None else _stored_so(plain, native)
        if self.native is not None and not ctx.judged_together:
            self.spec = self.native if ctx.selector.prefers("linear", self.native) else self.spec
        [self._columns] = inputs.within(0, in_features)
        if stored is not None and self.unpacks and not self._stays_packed(ctx):
            self.unpack()
        elif ctx.size > 1 and not ctx.judged_together:
            self.check_cut()
        self._pending: list[dict[str, list[Tensor] | None]] = []

    def check_cut(self) -> None:
        """Refuse a part of the matrix that cuts what one scale is for, before kernels refuse it in
        words that name no remedy.

        Raises:
            CheckpointError: It does.
        """
        for part in self.shares():
            self._tensors(*part)

    @property
    def unpacks(self) -> bool:
        """Whether the format can also give this matrix as plain numbers."""
        return self._format.unpack is not None

    def unpack(self) -> None:
        """Ask the format for plain numbers."""
        if self._format.unpack is not None:
            for name, _ in self._parts:
                self._format.unpack(name)
        self._format = PLAIN
        self.spec = replace(self.spec, weight=None, activation=None)

    def _stays_packed(self, ctx: BuildContext) -> bool:
        """Tell whether some kernel takes the form, and this rank's part can be cut out."""
        if not ctx.judged_together and not ctx.selector.offers("linear", self.spec):
            return False
        try:
            return all(self._tensors(*part) for part in self.shares())
        except CheckpointError:
            return False

    @property
    def names(self) -> list[str]:
        """Names of its weights in the checkpoint."""
        return [f"{name}.weight" for name, _ in self._parts]

    def partial(self) -> Matrix:
        """Leave each rank its own summand; the caller adds up the results of several matrices."""
        self._adds = False
        return self

    def sum_of(self, ctx: BuildContext) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return the function that adds up the ranks' results in place; None without a sum."""
        return ctx.communicator.all_reduce if self._adds and ctx.communicator else None

    def holder(self, ctx: BuildContext, slot: str, asked: object, operation: object) -> Holder:
        """Describe the operation that will hold this matrix, and those beside it, for `deliver`.

        Args:
            ctx: The build context.
            slot, asked: The question that the operation answers.
            operation: See `BuildContext.holder`.
        """
        spec = self.spec
        nbytes = ctx.selector.held_bytes(slot, asked, [replace(spec, bias=False)])
        if holds_plain(ctx.selector.decisions[slot, asked]):
            spec = replace(spec, weight=None)
        size = nbytes / max(spec.in_features * spec.out_features, 1)
        form = form_of(spec) + (f" ({MIXED})" if self._mixed else "")
        if self._left and self.spec.weight and not self.spec.activation:
            form += f" (x as it is, where the checkpoint has {self._left})"
        return replace(ctx.holder(slot, asked, form, operation), weight_bytes=size)

    def deliver(self, ctx: BuildContext, load: Load, holder: Holder, prefix: str = "") -> None:
        """Ask for the checkpoint's tensors; once all are here, `load` gets this rank's part.

        Args:
            ctx: The build context.
            load: May be called again with new values, if the holder has a state.
            holder: Who keeps them.
            prefix: Of their names in the holder's state.
        """
        wanted = self._wanted()
        names = [
            f"{name}.{kind}" for (name, _), w in zip(self._parts, wanted, strict=True) for kind in w
        ]
        self._pending = [dict.fromkeys(specs) for specs in wanted]
        first = 0
        for i, ((name, size, share), specs) in enumerate(zip(self.shares(), wanted, strict=True)):
            numbers_kind = next(iter(specs))
            rows = (first, first := first + share.num_rows)
            for kind, spec in specs.items():
                full = f"{name}.{kind}"
                needs = tuple(other for other in names if other != full)
                counts = {numbers_kind: size * self._in_features, "bias": None}
                place = Place(holder, prefix + kind, rows, needs, counts.get(kind, 0))
                sink: Sink = partial(self._take, load, kind, i, spec)
                shape = spec.shape
                if self._transposed and kind == "weight":
                    sink, shape = _turned(sink), shape[::-1]
                ctx.weights.expect(full, shape, sink, spec.dtypes, place, spec.drawn)

    def _wanted(self) -> list[dict[str, TensorSpec]]:
        """Return the tensors of each matrix that all of them have, such as weights and scales.

        A scale of x that only some have is of no use to a kernel for all.

        Raises:
            CheckpointError: Their numbers go by several names.
        """
        found = [self._tensors(*part) for part in self.shares()]
        if self._apart:
            return found
        if len({next(iter(specs)) for specs in found}) > 1:
            raise stored_otherwise(self._parts)
        return [{k: s for k, s in specs.items() if all(k in o for o in found)} for specs in found]

    def takes_adapters(self, ctx: BuildContext) -> bool:
        """Tell whether adapters may change any of its matrices."""
        return ctx.adapters is not None and ctx.adapters.takes(name for name, _ in self._parts)

    def adapted(
        self, ctx: BuildContext, op: LinearOp, named: Callable[[str], str] = str
    ) -> AdaptedLinear | None:
        """Return what adapters add to this rank's part of the product; None where none may.

        Args:
            named: What adapters call each matrix.
        """
        if ctx.adapters is None or not self.takes_adapters(ctx):
            return None
        divided = self.spec.in_features < self._in_features
        total = ctx.communicator.all_reduce if divided and ctx.communicator else None
        base = Base(op, self.spec, total, partial(self._row_squares, ctx))
        shares = [(named(name), size, share) for name, size, share in self.shares()]
        return adapted_linear(ctx, ctx.adapters, shares, self._in_features, base)

    def _row_squares(self, ctx: BuildContext) -> Tensor | None:
        """Return the sum of squares of each row of this rank's part, from the checkpoint; None
        where its numbers are not what is multiplied, or are not there any more."""
        plain = self.spec.weight is None and not self._apart
        source = ctx.weights.reopen() if plain else None
        if source is None:
            return None
        names = {ctx.weights.known_as(name): name for name in source.names()}
        if not names.keys() >= set(self.names):
            return None
        found = []
        for name, size, share in self.shares():
            whole = source.tensor(names[f"{name}.weight"])
            spec = self._tensors(name, size, share)["weight"]
            for piece in spec.keep(whole.t() if self._transposed else whole):
                for first in range(0, len(piece), ROWS):
                    numbers = piece[first : first + ROWS].to(ctx.torch_dtype).float()
                    found.append(torch.linalg.vector_norm(numbers, dim=1).square())
        return torch.cat(found)

    def shares(self) -> list[tuple[str, int, Share]]:
        """Return name, size and this rank's part of each checkpoint matrix."""
        shares, begin = [], 0
        for i, (name, size) in enumerate(self._parts):
            rows = tuple(self._outputs.within(begin, begin + size))
            begin += size
            padding = self._outputs.padding if i + 1 == len(self._parts) else 0
            shares.append((name, size, Share(rows, self._columns, padding)))
        return shares

    def _tensors(self, name: str, size: int, share: Share) -> dict[str, TensorSpec]:
        """Return one matrix's tensors; its bias too where another rank adds it."""
        stored = self._format if self._apart.get(name, True) else PLAIN
        specs = dict(stored.tensors(name, (size, self._in_features), share))
        return specs | ({"bias": bias_spec(size, share)} if self._bias else {})

    def _take(self, load: Load, kind: str, index: int, spec: TensorSpec, tensor: Tensor) -> None:
        """Keep this rank's part; once all are here, let the kernel prepare them, and let go."""
        self._pending[index][kind] = spec.keep(tensor)
        complete = [{k: p for k, p in own.items() if p is not None} for own in self._pending]
        if all(len(c) == len(own) for c, own in zip(complete, self._pending, strict=True)):
            load(self._made(complete))
            self._pending = [dict.fromkeys(own) for own in self._pending]

    def _made(self, kept: Sequence[Mapping[str, list[Tensor]]]) -> Mapping[str, Sequence[Tensor]]:
        """Return what the operation loads, of the pieces of each part."""
        biases = [t for own in kept for t in own.get("bias", ())]
        bias = {"bias": biases} if self.spec.bias else {}
        kinds = [kind for kind in kept[0] if kind != "bias"]
        if not self._apart:
            pieces = {kind: [t for own in kept for t in own[kind]] for kind in kinds}
            return self._format.canonical(self._parts[0][0], pieces | bias)
        pairs = zip(self._apart.items(), kept, strict=True)
        return {"weight": [self._plain(name, form, own) for (name, form), own in pairs]} | bias

    def _plain(self, name: str, form: Storage | None, kept: Mapping[str, list[Tensor]]) -> Tensor:
        """Return one part as plain numbers of the model's type."""
        own: Mapping[str, Sequence[Tensor]] = {k: p for k, p in kept.items() if k != "bias"}
        if form is None:
            return plain_weight(self.spec, own)
        return plain_weight(_stored_so(self.spec, form), self._format.canonical(name, own))


def _stored_so(plain: LinearSpec, stored: Storage) -> LinearSpec:
    return replace(plain, weight=stored.weight, activation=stored.activation)


def _turned(sink: Sink) -> Sink:
    """Return what takes the transposed tensor."""
    return lambda tensor: sink(tensor.t())


def form_of(spec: LinearSpec) -> str:
    """Say in which form kernels get a matrix: "bfloat16", "int8 by channel, x in int8 by token"."""
    weight = spec.dtype if spec.weight is None else str(spec.weight)
    return weight if spec.activation is None else f"{weight}, x in {spec.activation}"
