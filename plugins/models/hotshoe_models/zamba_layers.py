"""Layers of Zamba and Zamba 2: state-space blocks, some of which take what a transformer adds.

A few transformers, or one, serve all of these layers by turns. Each takes the residual and the
embeddings side by side. In Zamba 2 it has matrices of low rank for every layer that it serves.
Sources: Glorioso et al. 2024, arXiv:2405.16712 and arXiv:2411.15242.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotshoe.layers import (
    Attention,
    BuildContext,
    ForwardBatch,
    GatedActivation,
    Linear,
    Matrix,
    RMSNorm,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.layers.split import Split
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixers import Mixer, StateMixer
from hotshoe_models.norms import plain_norm
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import refuse_stages

WHAT = "attention heads"
BETWEEN = "channels between MLP matrices"
PARTS = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who serves whom.

    Attributes:
        hybrid: Layers that a transformer serves, in order.
        blocks: How many transformers there are; they take turns.
        rank: Of the matrices for each layer; 0 for none.
        adapts_attention: There are such for q, k and v, too.
        name: Of a transformer within the first layer that it serves.
        gate_up: Its matrices of gates and ups, or the one of both.
        mixer: The block of every layer.
    """

    hybrid: tuple[int, ...]
    blocks: int
    rank: int
    adapts_attention: bool
    name: str = "shared_transformer"
    gate_up: tuple[str, ...] = ("gate_up_proj",)
    mixer: Callable[[DecoderSpec, BuildContext, int, Mapping[Rotation, Rotary]], Mixer] = StateMixer


class ZambaDecoder(DenseDecoder):
    """See `DenseDecoder`.

    Raises:
        ConfigError: Stages are to divide the layers.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, sharing: Sharing) -> None:
        refuse_stages(ctx, "layers of this model share weights, and take the embeddings")
        self._sharing = sharing
        super().__init__(spec, ctx)
        self._norm = plain_norm(spec, ctx, spec.names.final_norm)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        sharing, self._zamba_layers = self._sharing, list[_Layer]()
        transformers: list[Transformer] = []
        alone = replace(ctx, adapters=None)  # each layer's use of a matrix has its own
        for i in own:
            turn, served = None, i in sharing.hybrid
            if served:
                number = sharing.hybrid.index(i)
                if number < sharing.blocks:
                    prefix = f"model.layers.{i}.{sharing.name}."
                    transformers.append(Transformer(spec, alone, prefix, sharing.gate_up))
                block = transformers[number % sharing.blocks]
                turn = Turn(spec, ctx, i, block, number, sharing, rotaries)
            own_spec = spec.sized(i)
            mixer = sharing.mixer(own_spec, ctx, i, rotaries)
            self._zamba_layers.append(_Layer(own_spec, ctx, i, mixer, turn))
        # Writers may repeat a transformer in each layer that it serves.
        others = "|".join(map(str, sharing.hybrid[sharing.blocks :]))
        if others:
            ctx.weights.ignore([rf"^model\.layers\.(?:{others})\.{sharing.name}\."])

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        residual = hidden
        for i, layer in enumerate(self._zamba_layers):
            keep = batch.outputs_at if i + 1 == len(self._zamba_layers) else None
            residual = layer(residual, hidden, batch, keep)
        return self._norm(residual)


class _Layer:
    """A state-space block, which takes the residual and what its transformer adds."""

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        mixer: Mixer,
        turn: Turn | None,
    ) -> None:
        self._turn, self._mixer = turn, mixer
        self._norm = plain_norm(spec, ctx, f"{spec.names.layer.format(i)}input_layernorm")

    def __call__(
        self, residual: Tensor, embedded: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """Map [num_tokens, hidden_size] to the next layer's, of the tokens at keep."""
        taken = residual
        if self._turn is not None:
            taken = residual + self._turn(residual, embedded, batch)
        out = self._mixer(self._norm(taken), batch, keep)
        return (residual if keep is None else residual[keep]) + out


class Transformer:
    """Attention and an MLP that several layers use."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, prefix: str, gate_up: tuple[str, ...]
    ) -> None:
        size, inner, heads = (
            spec.hidden_size,
            spec.intermediate_size,
            spec.num_heads * spec.head_dim,
        )
        self.prefix, eps = prefix, spec.norm_eps
        quantize = {
            name: spec.quantizes(name, ctx.format) for name in ("qkv", "o", "gate_up", "down")
        }
        self.heads = _heads(spec, ctx)
        self.channels = ctx.split(BETWEEN, Section(inner), Section(inner))
        rows = [(f"{prefix}self_attn.{part}_proj", width) for part, width in _widths(spec).items()]
        self.input_norm = RMSNorm(ctx, f"{prefix}input_layernorm", 2 * size, eps)
        outputs = Split(tuple(r for split in _shifted(spec, self.heads) for r in split.ranges))
        self.qkv = Linear(
            ctx, Matrix(ctx, rows, 2 * size, quantize=quantize["qkv"], outputs=outputs)
        )
        self.o = Linear(
            ctx,
            Matrix(
                ctx,
                [(f"{prefix}self_attn.o_proj", size)],
                heads,
                quantize=quantize["o"],
                inputs=self.heads["q"],
            ),
        )
        self.mlp_norm = RMSNorm(ctx, f"{prefix}pre_ff_layernorm", size, eps)
        rows_of_each = 2 * inner // len(gate_up)
        both = [(f"{prefix}feed_forward.{name}", rows_of_each) for name in gate_up]
        self.gate_up = Linear(
            ctx, Matrix(ctx, both, size, quantize=quantize["gate_up"], outputs=self.channels)
        )
        self.down = Linear(
            ctx,
            Matrix(
                ctx,
                [(f"{prefix}feed_forward.down_proj", size)],
                inner,
                quantize=quantize["down"],
                inputs=ctx.split(BETWEEN, Section(inner)),
            ),
        )
        self.act = GatedActivation(ctx, self.channels.size // 2, spec.activation, None)


def _widths(spec: DecoderSpec) -> dict[str, int]:
    """Return rows of the matrices of q, k and v."""
    heads = dict(zip(PARTS, (spec.num_heads, *[spec.num_kv_heads] * 2), strict=True))
    return {part: count * spec.head_dim for part, count in heads.items()}


def _heads(spec: DecoderSpec, ctx: BuildContext) -> dict[str, Split]:
    """Return this rank's rows of q, k and v, each counted from its own first one."""
    kv = Section(spec.num_kv_heads, spec.head_dim, shared=True)
    sections = dict(zip(PARTS, (Section(spec.num_heads, spec.head_dim), kv, kv), strict=True))
    return {part: ctx.split(WHAT, section) for part, section in sections.items()}


def _shifted(spec: DecoderSpec, heads: Mapping[str, Split]) -> list[Split]:
    """Return the rows where q, k and v lie below each other."""
    found, first = [], 0
    for part, width in _widths(spec).items():
        found.append(Split(tuple((first + a, first + b) for a, b in heads[part].ranges)))
        first += width
    return found


class Turn:
    """One layer's use of a transformer: its own cache, and its matrices of low rank."""

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        block: Transformer,
        number: int,
        sharing: Sharing,
        rotaries: Mapping[Rotation, Rotary],
    ) -> None:
        self._block, size = block, spec.hidden_size
        rotation, prefix = spec.layers[i].rotation, block.prefix
        own = f"model.layers.{i}.{sharing.name}."

        def named(name: str) -> str:
            return own + name.removeprefix(prefix)

        products = (block.qkv, block.o, block.gate_up, block.down)
        self._qkv, self._o, self._gate_up, self._down = (one.again(ctx, named) for one in products)
        self._attention = Attention(
            ctx,
            ctx.attention_spec(
                spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.attention_scale
            ),
            None if rotation is None else rotaries[rotation],
        )
        self._adapters: list[_LowRank] = []
        if sharing.adapts_attention:
            self._adapters = [
                _LowRank(
                    ctx,
                    f"{prefix}self_attn.linear_{part}_adapter_list.{number}.",
                    (2 * size, sharing.rank, width),
                    block.heads[part],
                    named,
                )
                for part, width in _widths(spec).items()
            ]
        self._mlp_adapter: _LowRank | None = None
        if sharing.rank:
            name = f"{prefix}feed_forward.gate_up_proj_adapter_list.{number}."
            sizes = size, sharing.rank, 2 * spec.intermediate_size
            self._mlp_adapter = _LowRank(ctx, name, sizes, block.channels, named)
        self._pass_over(ctx, own, number, sharing)
        rows = [(f"model.layers.{i}.linear", size)]
        self._out = Linear(ctx, Matrix(ctx, rows, size, quantize=spec.quantizes("o", ctx.format)))

    def __call__(self, residual: Tensor, embedded: Tensor, batch: ForwardBatch) -> Tensor:
        """Return what joins the residual where the layer's own block takes it."""
        block = self._block
        taken = block.input_norm(torch.cat((residual, embedded), 1))
        assert isinstance(taken, Tensor)
        qkv = self._qkv(taken)
        if self._adapters:
            qkv += torch.cat([adapt(taken) for adapt in self._adapters], 1)
        normed = block.mlp_norm(self._o(self._attention(qkv, batch)))
        assert isinstance(normed, Tensor)
        both = self._gate_up(normed)
        if self._mlp_adapter is not None:
            both = both.add_(self._mlp_adapter(normed))
        return self._out(self._down(block.act(both)))

    def _pass_over(self, ctx: BuildContext, own: str, number: int, sharing: Sharing) -> None:
        """Let adapters have factors of the other layers' matrices of low rank: transformers' module
        of a layer has these, too, and does not use them."""
        if ctx.adapters is None or not sharing.rank:
            return
        lists = [f"{own}feed_forward.gate_up_proj_adapter_list."]
        lists += [f"{own}self_attn.linear_{part}_adapter_list." for part in PARTS]
        others = [i for i in range(len(sharing.hybrid)) if i != number]
        names = (f"{one}{i}.{j}" for one in lists for i in others for j in range(2))
        ctx.adapters.shared.update(names)


class _LowRank:
    """Two matrices behind each other, of which the second one's rows are divided.

    Args:
        sizes: Inputs, channels between, and rows.
        named: What adapters call each matrix.
    """

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        sizes: tuple[int, int, int],
        outputs: Split,
        named: Callable[[str], str],
    ) -> None:
        # Only a checkpoint's own form: there is little to save.
        (inputs, rank, rows), quantize = sizes, not ctx.format.online
        down = Matrix(ctx, [(f"{prefix}0", rank)], inputs, quantize=quantize)
        up = Matrix(ctx, [(f"{prefix}1", rows)], rank, quantize=quantize, outputs=outputs)
        alone = replace(ctx, adapters=None)
        self._down, self._up = (Linear(alone, one).again(ctx, named) for one in (down, up))

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, inputs] to this rank's part of [num_tokens, rows]."""
        return self._up(self._down(x))
