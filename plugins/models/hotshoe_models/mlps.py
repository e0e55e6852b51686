"""MLPs as a `DecoderSpec` asks for them: gated, plain, or experts in their place."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from torch import Tensor

from hotshoe.layers import BuildContext, GatedMLP, Matrix, MoE, PlainMLP, Section, clamped
from hotshoe_models.adjugates import Adjugates
from hotshoe_models.sparse_mlp import SparseMLP
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.winners import GroupWinners, Winners
from hotshoe_models.xielu import Xielu

MLP: TypeAlias = GatedMLP | PlainMLP | SparseMLP | MoE | Adjugates | GroupWinners


def parts_of(prefix: str, names: tuple[str, ...], sizes: list[int]) -> list[tuple[str, int]]:
    """Pair names with row counts; a single name holds all rows stacked."""
    if len(names) == 1:
        return [(prefix + names[0], sum(sizes))]
    return [(prefix + name, size) for name, size in zip(names, sizes, strict=True)]


def build_mlp(spec: DecoderSpec, ctx: BuildContext, i: int) -> MLP:
    """Build a layer's MLP, divided among the ranks: gate_up by outputs, down by inputs; or experts
    in its place."""
    mixture, width = spec.layers[i].mixture, spec.intermediate_size
    if mixture is not None:
        prefix, quantize = spec.names.layer.format(i), spec.quantizes("experts", ctx.format)
        if (small := spec.layers[i].adjugates) is not None:
            return Adjugates(ctx, prefix, mixture, small, quantize)
        if isinstance(mixture, Winners):
            return GroupWinners(ctx, prefix, mixture, quantize)
        return MoE(ctx, prefix, mixture, quantize=quantize)
    up, down = mlp_matrices(spec, ctx, i)
    if spec.layers[i].sparsity:
        return SparseMLP(ctx, up, down, spec.activation, spec.layers[i].sparsity, width)
    if not spec.gated:
        learned = spec.activation == "xielu"
        name = spec.names.layer.format(i) + spec.names.activation
        return PlainMLP(ctx, up, down, Xielu(ctx, name) if learned else spec.activation)
    between = None if spec.gate_limits is None else clamped(*spec.gate_limits)
    if spec.gate_scale != 1.0:
        between = partial(_scale_gates, spec.gate_scale)
    return GatedMLP(ctx, up, down, spec.activation, between)


def _scale_gates(factor: float, both: Tensor) -> None:
    both[:, : both.shape[1] // 2].mul_(factor)


def mlp_matrices(spec: DecoderSpec, ctx: BuildContext, i: int) -> tuple[Matrix, Matrix]:
    """Return gate_up, or up without gates, and down."""
    names, size, width = spec.names, spec.hidden_size, spec.intermediate_size
    prefix = names.layer.format(i)
    what, channels = "channels between MLP matrices", Section(width)
    inner = 1 + spec.gated
    up = Matrix(
        ctx,
        parts_of(prefix, names.gate_up, [width] * inner),
        size,
        bias=spec.mlp_bias,
        quantize=spec.quantizes("gate_up", ctx.format),
        outputs=ctx.split(what, *[channels] * inner),
        transposed=spec.transposed,
    )
    down = Matrix(
        ctx,
        [(prefix + names.down, size)],
        width,
        bias=spec.mlp_bias if spec.down_bias is None else spec.down_bias,
        quantize=spec.quantizes("down", ctx.format),
        inputs=ctx.split(what, channels),
        transposed=spec.transposed,
    )
    return up, down
