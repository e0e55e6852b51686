"""Mixture of experts: a router, the operation of slot `moe`, and experts that all tokens share.

With tensor parallelism each rank holds a part of every expert's channels, with expert parallelism
some experts whole; routers are on all ranks, so that all choose alike, and the ranks add up once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers.context import BuildContext
from hotshoe.layers.expert_adapters import adapted_experts
from hotshoe.layers.experts import Share, names_of, share_of
from hotshoe.layers.formats import WeightFormat
from hotshoe.layers.limits import clamped
from hotshoe.layers.linear import Linear
from hotshoe.layers.matrix import Matrix
from hotshoe.layers.mlp import GatedMLP, PlainMLP
from hotshoe.layers.router import Router
from hotshoe.layers.scores import Scores
from hotshoe.layers.split import Section
from hotshoe.layers.stacks import Scaled, Stack, stacks_of
from hotshoe.layers.weights import Holder, Place, Sink, WeightTable
from hotshoe.slots import AdaptableMoeOp, MoeOp, MoeSpec, RouterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """Tensors that hold a matrix of every expert: [num_experts, rows, columns].

    Attributes:
        gate_up, down: Their names; those of biases [num_experts, rows] likewise, "" for none.
        transposed: They are [num_experts, columns, rows].
        interleaved: Rows of gate and up take turns.
        packed: Of quantized matrices, the tensors NAME_KIND that are read, by kind; as the
            weight's format says, with an axis of experts before, never transposed.
        output_scale: A factor [num_experts] on what each expert puts out, which its second matrix
            is multiplied by while it is loaded; "" for none.
        named: Quantized checkpoints name each expert's matrices, as `MoeNames` says, or have
            scales in tensors like these.
    """

    gate_up: str
    down: str
    gate_up_bias: str = ""
    down_bias: str = ""
    transposed: bool = False
    interleaved: bool = False
    packed: tuple[str, ...] = ()
    output_scale: str = ""
    named: bool = False

    def sides(self, kinds: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the tensors' names by side and kind."""
        return {
            "gate_up": {kind: _stack_name(self.gate_up, self.gate_up_bias, kind) for kind in kinds},
            "down": {kind: _stack_name(self.down, self.down_bias, kind) for kind in kinds},
        }


def _stack_name(name: str, bias: str, kind: str) -> str:
    return {"weight": name, "bias": bias}.get(kind, f"{name}_{kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeNames:
    """Checkpoint prefixes, relative to a layer's own.

    Attributes:
        gate_up, down: Of one expert, with {} for its number.
        stacked: Where the checkpoint has a tensor for all experts instead.
        correction: The tensor that moves the router's choice.
        table: That which names the experts of each token.
        shared_gate_up, shared_down: Of the experts that all tokens share.
        shared_gate: Of the row whose sigmoid opens them.
        latents: Of the matrices in front of the experts and behind them.
    """

    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    table: str = "mlp.gate.tid2eid"
    gate_up: tuple[str, ...] = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj")
    down: str = "mlp.experts.{}.down_proj"
    stacked: Stacked | None = None
    shared_gate_up: tuple[str, ...] = (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.up_proj",
    )
    shared_down: str = "mlp.shared_experts.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    latents: tuple[str, str] = ("mlp.fc1_latent_proj", "mlp.fc2_latent_proj")

    def of(self, format: WeightFormat) -> MoeNames:
        """Return the names in a checkpoint of a format."""
        named = self.stacked is not None and self.stacked.named and not format.online
        return replace(self, stacked=None) if named or format.by_expert else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A mixture of experts as data; see `hotshoe.slots.MoeSpec`.

    Attributes:
        intermediate_size: Channels between an expert's matrices.
        bias, router_bias: Experts have biases; the router has.
        shared_size: Channels of the experts that all tokens share, together; 0 for none.
        shared_limits: Of the shared experts' ups and gates; None for those of the others.
        shared_gated: A learned gate opens them, token by token.
        correction_shape: As the checkpoint has it; None for [num_experts].
        logit_correction: The correction moves logits in front of a sigmoid, and a token's choice is
            made by them; the router's specification has none then. Source: Kolibri 1.
        scale: Factor on the sum of all, shared ones included.
        scaled_input: A token's one expert takes it times the sigmoid of its logit, and counts 1:
            the router renormalizes, and `top_k` is 1. Source: Llama 4.
        table_size: Tokens of a vocabulary, each of which has its own `top_k` experts whatever is
            computed of it; the router says alone what each counts. 0 where the router chooses.
            Source: Roller et al. 2021, arXiv:2106.04426.
        always: So many of the experts, the last ones, are chosen by every token and count beside
            the others; `num_experts` and `top_k` include them. Source: Inkling.
        latent_size: Channels of latents, which experts take and put out in the place of hidden
            states; 0 for none. Source: Nemotron 3.
    """

    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int
    activation: str
    router: RouterSpec
    gated: bool = True
    limit: float | None = None
    alpha: float = 1.0
    shift: float = 0.0
    gate_limit: float | None = None
    shared_limits: tuple[float, float] | None = None
    bias: bool = False
    router_bias: bool = False
    shared_size: int = 0
    shared_gated: bool = False
    correction_shape: tuple[int, ...] | None = None
    logit_correction: bool = False
    scale: float = 1.0
    scaled_input: bool = False
    latent_size: int = 0
    table_size: int = 0
    always: int = 0
    names: MoeNames = MoeNames()

    def matrices_of(self, prefix: str, expert: int) -> list[str]:
        """Return the prefixes of an expert's matrices, that of the second one last; where they are
        stacked, our own ones."""
        names, stacked = self.names, self.names.stacked
        if stacked is None:
            return [prefix + name.format(expert) for name in (*names.gate_up, names.down)]
        parts = ("gate", "up") if self.gated else ("up",)
        first = [f"{prefix}{stacked.gate_up}.{expert}.{part}" for part in parts]
        return [*first, f"{prefix}{stacked.down}.{expert}"]

    def spec(self, gate_up: Matrix, down: Matrix, held: int | None = None) -> MoeSpec:
        """Ask for experts of such matrices, so many of them here."""
        return MoeSpec(
            gate_up.spec,
            down.spec,
            self.num_experts,
            self.top_k,
            self.activation,
            self.router,
            self.gated,
            self.limit,
            self.alpha,
            self.shift,
            held,
            self.gate_limit,
        )


class RoutedExperts:
    """Experts, which are chosen by logits that somebody else has.

    Args:
        ctx: The build context.
        prefix: The layer's.
        mixture: What it consists of; of it what concerns experts alone.
        quantize: False keeps experts out of quantization.

    Raises:
        CheckpointError: Experts are stored in different forms.
        ConfigError: They, or their channels, cannot be divided among the ranks.
    """

    def __init__(
        self, ctx: BuildContext, prefix: str, mixture: Mixture, quantize: bool = True
    ) -> None:
        transposed = mixture.names.stacked is not None and mixture.names.stacked.transposed
        names = mixture.names.of(ctx.format)
        mixture = replace(mixture, names=names)
        share = share_of(mixture.num_experts, ctx.experts, ctx.device, ctx.redundant_experts)
        self._placement = share.placement
        ctx.mixtures.append(share)
        experts = _experts(ctx, prefix, mixture, quantize, share)
        spec = mixture.spec(*experts[0], share.held)
        held = [name for pair in experts for matrix in pair for name in matrix.names]
        self._op: MoeOp = ctx.operation("moe", spec, held)
        #: Asked once: what stands for an operation later need not be of its class.
        self._adaptable = self._op if isinstance(self._op, AdaptableMoeOp) else None
        holder = experts[0][0].holder(ctx, "moe", spec, self._op)
        share.state = holder.state
        if share.moves:  # no name stays where it was loaded
            why = "moves its experts from place to place (--enable-eplb)"
            holder = replace(holder, state=None, why_not=why)
        ctx.weight_bytes.append(self._op.nbytes)
        self._adapted = adapted_experts(ctx, prefix, mixture, spec, self._op, experts, share)
        stacked = names.stacked
        inner = ctx if stacked is None else replace(ctx, weights=WeightTable())
        for i, (gate_up, down) in enumerate(experts):
            gate_up.deliver(
                inner, partial(self._op.load_gate_up, i), holder, f"experts.{i}.gate_up."
            )
            down.deliver(inner, partial(self._op.load_down, i), holder, f"experts.{i}.down.")
        if stacked is not None:
            _expect_stacked(ctx, prefix, mixture, inner.weights, holder, share)
        else:
            templates = [prefix + name for name in (*names.gate_up, names.down)]
            stacked_together = mixture.num_experts - mixture.always
            if others := share.others(mixture.num_experts):
                ctx.weights.elsewhere(names_of(templates, others))
            for name, parts in stacks_of(templates, stacked_together).items():
                ctx.weights.unstack(name, parts, transposed)

    def __call__(self, x: Tensor, logits: Tensor, correction: Tensor | None = None) -> Tensor:
        """See `hotshoe.slots.MoeOp`; the result is this rank's summand."""
        adapted = self._adapted
        if adapted is not None and (between := adapted.of(len(x))) is not None:
            assert self._adaptable is not None, "adapters of experts are refused without"
            return self._adaptable.adapted(x, logits, correction, self._placement, between)
        if self._placement is None:
            return self._op(x, logits, correction)
        return self._op(x, logits, correction, self._placement)


class MoE:
    """Routed experts, and shared ones beside them.

    Args:
        ctx: The build context.
        prefix: The layer's.
        mixture: What it consists of.
        quantize: False keeps experts out of quantization; routers always are.

    Raises:
        CheckpointError: Experts are stored in different forms.
        ConfigError: They, or their channels, cannot be divided among the ranks.
    """

    #: The layer before hands over plain numbers: a router takes no others.
    input_quant = None

    def __init__(
        self, ctx: BuildContext, prefix: str, mixture: Mixture, quantize: bool = True
    ) -> None:
        self._router = Router(ctx, prefix, mixture)
        self._scale, self._scaled_input = mixture.scale, mixture.scaled_input
        assert not mixture.scaled_input or (mixture.top_k == 1 and mixture.router.renormalize)
        self._experts = RoutedExperts(ctx, prefix, mixture, quantize)
        self._latents = _latents(ctx, prefix, mixture, quantize) if mixture.latent_size else None
        self._shared = _Shared(ctx, prefix, mixture, quantize) if mixture.shared_size else None
        self._sum = ctx.communicator.all_reduce if ctx.communicator is not None else None

    def __call__(
        self, x: Tensor, judged: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """Map [num_tokens, hidden_size] to a new tensor of the same shape.

        Args:
            x: What experts compute with.
            judged: [num_tokens, hidden_size], by which the router chooses; None for x.
            ids: [num_tokens] int64, the tokens, where they choose experts; else None.
        """
        logits, correction = self._router(x if judged is None else judged, ids)
        taken = x
        if self._scaled_input:
            taken = (x * logits.amax(-1, keepdim=True).sigmoid_()).to(x.dtype)
        if self._latents is None:
            y = self._experts(taken, logits, correction)
        else:  # the matrix behind maps a rank's summand to a summand
            into, out = self._latents
            y = out(self._experts(into(taken), logits, correction))
        if self._shared is not None:
            y.add_(self._shared(x))
        if self._scale != 1.0:
            y.mul_(self._scale)
        return y if self._sum is None else self._sum(y, y)


def _latents(
    ctx: BuildContext, prefix: str, mixture: Mixture, quantize: bool
) -> tuple[Linear, Linear]:
    """Build the matrices between hidden states and latents, whole on each rank."""
    sizes, names = (mixture.hidden_size, mixture.latent_size), mixture.names.latents
    into, out = (
        Linear(ctx, Matrix(ctx, [(prefix + name, rows)], columns, quantize=quantize))
        for name, columns, rows in zip(names, sizes, reversed(sizes), strict=True)
    )
    return into, out


class _Shared:
    """An MLP for every token, opened by a gate or always open; this rank's summand."""

    def __init__(self, ctx: BuildContext, prefix: str, mixture: Mixture, quantize: bool) -> None:
        names, hidden, inner = mixture.names, mixture.hidden_size, mixture.shared_size
        channels, sides = Section(inner), 1 + mixture.gated
        size = sides * inner // len(names.shared_gate_up)
        what = "channels of shared experts"
        gate_up = Matrix(
            ctx,
            [(prefix + name, size) for name in names.shared_gate_up],
            hidden,
            quantize=quantize,
            outputs=ctx.split(what, *[channels] * sides),
        )
        down = Matrix(
            ctx,
            [(prefix + names.shared_down, hidden)],
            inner,
            quantize=quantize,
            inputs=ctx.split(what, channels),
        )
        down, act = down.partial(), mixture.activation
        limit, top = mixture.shared_limits or (mixture.limit, mixture.gate_limit)
        limits = None if limit is None else clamped(limit, mixture.alpha, mixture.shift, top)
        self._mlp: GatedMLP | PlainMLP = (
            GatedMLP(ctx, gate_up, down, act, limits)
            if mixture.gated
            else PlainMLP(ctx, gate_up, down, act)
        )
        self._gate: Scores | None = None
        if mixture.shared_gated:
            self._gate = Scores(ctx, prefix + names.shared_gate, 1, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        y = self._mlp(x)
        return y if self._gate is None else y.mul_(self._gate(x).sigmoid_())


def _experts(
    ctx: BuildContext, prefix: str, mixture: Mixture, quantize: bool, share: Share
) -> list[tuple[Matrix, Matrix]]:
    """Return this rank's part of the two matrices of its experts, by place."""
    hidden = mixture.latent_size or mixture.hidden_size
    inner = mixture.intermediate_size
    sections = (Section(inner),) * (1 + mixture.gated)
    what = "channels between an expert's matrices"
    rows = columns = None  # experts are whole
    if share.placement is None:
        rows, columns = ctx.split(what, *sections), ctx.split(what, sections[0])
    found = []
    together = replace(ctx, judged_together=True)
    for i in share.experts:
        *first, second = mixture.matrices_of(prefix, i)
        parts = [(name, len(sections) * inner // len(first)) for name in first]
        build = partial(Matrix, together, bias=mixture.bias, quantize=quantize)
        gate_up = build(parts, hidden, outputs=rows)
        found.append((gate_up, build([(second, hidden)], inner, inputs=columns)))
    for matrix in found[0]:
        matrix.check_cut()
    packed = [matrix for pair in found for matrix in pair if matrix.unpacks]
    if packed and not ctx.selector.offers("moe", mixture.spec(*found[0], share.held)):
        for matrix in packed:
            matrix.unpack()
    _take_native(ctx, mixture, found, share.held)
    if any((a.spec, b.spec) != (found[0][0].spec, found[0][1].spec) for a, b in found):
        raise CheckpointError(f"the experts of {prefix} are stored in different forms")
    return found


def _take_native(
    ctx: BuildContext, mixture: Mixture, experts: list[tuple[Matrix, Matrix]], held: int | None
) -> None:
    """Ask for the native form of all experts, if all have the same and some kernel takes it."""
    forms = {(gate_up.native, down.native) for gate_up, down in experts}
    gate_up, down = forms.pop()
    if forms or gate_up is None or down is None:
        return
    wanted = replace(mixture.spec(*experts[0], held), gate_up=gate_up, down=down)
    if ctx.selector.prefers("moe", wanted):
        for pair in experts:
            for matrix, spec in zip(pair, (gate_up, down), strict=True):
                matrix.spec = spec


def _expect_stacked(
    ctx: BuildContext,
    prefix: str,
    mixture: Mixture,
    inner: WeightTable,
    holder: Holder,
    share: Share,
) -> None:
    """Ask for tensors that hold all experts; `inner` is what they consist of.

    Raises:
        CheckpointError: The checkpoint's format keeps a matrix in several tensors.
    """
    stacked = mixture.names.stacked
    assert stacked is not None
    kinds = dict.fromkeys(name.rpartition(".")[2] for name in inner.expected)
    read = {"weight", *stacked.packed} | ({"bias"} if not stacked.output_scale else set())
    if unread := kinds.keys() - read:
        raise CheckpointError(
            f"{prefix}{stacked.gate_up} holds all experts, and is not read with {min(unread)}; "
            "use the unquantized checkpoint"
        )
    experts = [mixture.matrices_of(prefix, i) for i in share.experts]
    parts = {
        "gate_up": [names[:-1] for names in experts],
        "down": [names[-1:] for names in experts],
    }
    for side, names in stacked.sides(kinds).items():
        for kind, name in names.items():
            stack = Stack(
                inner,
                [[f"{part}.{kind}" for part in one] for one in parts[side]],
                stacked.transposed and kind == "weight",
                stacked.interleaved and side == "gate_up",
                share.experts,
                mixture.num_experts,
            )
            needs = tuple(prefix + other for other in names.values() if other != name)
            rows = (0, stack.num_rows)
            place = Place(holder, f"experts.*.{side}.{kind}", rows, needs, stack.numbers)
            sink: Sink = stack
            if stacked.output_scale and side == "down":
                scale = prefix + stacked.output_scale
                both = Scaled(stack)
                sink, place = both.take_weight, replace(place, needs=(*needs, scale))
                beside = replace(place, needs=(prefix + name,), numbers=0)
                ctx.weights.expect(scale, (mixture.num_experts,), both.take_scale, place=beside)
            ctx.weights.expect(prefix + name, stack.shape, sink, stack.dtypes, place)
