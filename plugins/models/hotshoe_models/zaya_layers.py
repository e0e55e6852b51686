"""Layers of Zaya: attention of convolved q and k, and experts behind an MLP as their router.

A router's state goes to that of the next layer. The residual is in float32; it and what joins it
have factors.

Source: Anthony et al. 2025, arXiv:2511.17127 (ZAYA1).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from hotshoe.layers import BuildContext, ForwardBatch, Mixture, RMSNorm, Rotary, Rotation, Scores
from hotshoe_models.convolved import ConvolvedMixer
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.idle_experts import IdleExperts
from hotshoe_models.per_layer import Vector, norm
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import refuse_stages

#: What a tensor is shifted by, and what then scales it.
PARTS = ("bias", "scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZayaParts:
    """What a `DecoderSpec` does not say.

    Attributes:
        taps: Of the convolutions of q and k, see `ConvolvedMixer`.
        router_size: Channels of a router's state.
        mixture: The experts; one more does nothing.
    """

    taps: tuple[int, int]
    router_size: int
    mixture: Mixture


class ZayaDecoder(DenseDecoder):
    """See `DenseDecoder`.

    Raises:
        ConfigError: Stages are to divide the layers.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, parts: ZayaParts) -> None:
        refuse_stages(ctx, "layers of this model hand on states of their routers")
        self._parts = parts
        super().__init__(spec, ctx)
        self._shift, self._factor = (
            Vector(ctx, f"model.input_hidden_states_{part}", spec.hidden_size) for part in PARTS
        )
        self._norm, self._dtype = norm(spec, ctx, spec.names.final_norm), ctx.torch_dtype

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        self._zaya_layers = [ZayaLayer(spec, ctx, i, rotaries, self._parts) for i in own]

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        residual = ((hidden + self._shift.value) * self._factor.value).float()
        routed: Tensor | None = None
        for i, layer in enumerate(self._zaya_layers):
            keep = batch.outputs_at if i + 1 == len(self._zaya_layers) else None
            residual, routed = layer(residual, routed, batch, keep)
        return self._norm(residual.to(self._dtype))


class ZayaLayer:
    """Attention, then experts; both join the residual by factors."""

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        parts: ZayaParts,
    ) -> None:
        names, prefix, size = spec.names, spec.names.layer.format(i), spec.hidden_size
        self._input_norm = norm(spec, ctx, f"{prefix}{names.input_norm}")
        self._mixer = ConvolvedMixer(spec, ctx, i, rotaries, parts.taps)
        self._after_mixer = _Joint(ctx, f"{prefix}post_attention_residual_scale.", size)
        self._mlp_norm = norm(spec, ctx, f"{prefix}{names.mlp_norm}")
        self._router = StateRouter(spec, ctx, f"{prefix}mlp.gate.", i > 0, parts)
        self._experts = IdleExperts(ctx, prefix, parts.mixture, 1, passes=False)
        self._after_experts = _Joint(ctx, f"{prefix}post_mlp_residual_scale.", size)
        self._dtype = ctx.torch_dtype

    def __call__(
        self, residual: Tensor, routed: Tensor | None, batch: ForwardBatch, keep: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Map the residual [num_tokens, hidden_size], float32, and the state of the router before
        [num_tokens, router_size] to the next layer's, of tokens at keep."""
        out = self._mixer(self._input_norm(residual.to(self._dtype)), batch, keep)
        if keep is not None:
            residual, routed = residual[keep], None if routed is None else routed[keep]
        residual = self._after_mixer(out, residual)
        taken = self._mlp_norm(residual.to(self._dtype))
        logits, routed = self._router(taken, routed)
        return self._after_experts(self._experts(taken, logits), residual), routed


class _Joint:
    """The addition of a block's output to the residual, each shifted and scaled by channel."""

    def __init__(self, ctx: BuildContext, prefix: str, size: int) -> None:
        names = (f"{side}_{part}" for side in ("hidden_states", "residual") for part in PARTS)
        self._vectors = [Vector(ctx, prefix + name, size) for name in names]

    def __call__(self, out: Tensor, residual: Tensor) -> Tensor:
        """Return a new residual [n, hidden_size], float32."""
        shift, factor, old_shift, old_factor = (vector.value for vector in self._vectors)
        return (residual + old_shift).mul_(old_factor).add_((out + shift) * factor)


class StateRouter:
    """Logits of experts by an MLP of two hidden layers, over a state that hidden states make and to
    which the state of the router before is added, channel by channel scaled. All in float32 but
    what is normed.

    Args:
        adds: There is a router before.
    """

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, prefix: str, adds: bool, parts: ZayaParts
    ) -> None:
        size, mlp, count = parts.router_size, f"{prefix}router_mlp.", parts.mixture.num_experts
        self._down = Scores(ctx, f"{prefix}down_proj", size, spec.hidden_size, bias=True)
        self._share = Vector(ctx, f"{prefix}router_states_scale", size) if adds else None
        self._norm = RMSNorm(ctx, f"{mlp}norm", size, spec.norm_eps)
        self._inner = [Scores(ctx, f"{mlp}fc{n}", size, size, bias=True) for n in (1, 2)]
        self._out = Scores(ctx, f"{mlp}out_proj", count + 1, size)
        self._dtype = ctx.torch_dtype

    def __call__(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits [n, num_experts + 1] and this router's state [n, router_size], float32, of
        x [n, hidden_size] and the state of the router before."""
        state = self._down(x)
        if self._share is not None:
            assert before is not None
            state.add_(before * self._share.value)
        y = self._norm(state.to(self._dtype))
        assert isinstance(y, Tensor)
        for matrix in self._inner:
            y = functional.gelu(matrix(y)).to(self._dtype)
        return self._out(y), state
