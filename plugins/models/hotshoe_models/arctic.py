"""Snowflake Arctic: a dense MLP behind attention, and experts beside both.

Experts take the residual that attention starts from, and their result joins behind the MLP.
Defaults are those of the published ArcticConfig. Sources: the code beside these checkpoints, and
the keys and tensors of the files.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Rotary, Rotation
from hotshoe.models import ModelConfig
from hotshoe.slots import Quantized, RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE
from hotshoe_models.mixers import AttentionMixer
from hotshoe_models.mixtral import BLOCK
from hotshoe_models.mixtral import NAMES as EXPERTS
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.mlps import build_mlp
from hotshoe_models.norms import build_add_norm, plain_norm
from hotshoe_models.spec import DecoderSpec, WeightNames
from hotshoe_models.values import decoder_spec, flag, layer_specs, refuse

DEFAULTS = {
    **SHAPE,
    "intermediate_size": 14336,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "num_experts_per_tok": 1,
    "num_local_experts": 8,
    "moe_layer_frequency": 2,
    "parallel_attn_mlp_res": False,
}
DEFAULT_THETA = 1_000_000.0
NAMES = WeightNames(
    gate_up=(f"{BLOCK}mlp.w1", f"{BLOCK}mlp.w3"),
    down=f"{BLOCK}mlp.w2",
)
#: The MLP of a layer whose experts lie beside it. It is as wide as the residual.
BESIDE = replace(NAMES, gate_up=("residual_mlp.w1", "residual_mlp.w3"), down="residual_mlp.w2")


def build(config: ModelConfig, ctx: BuildContext) -> ArcticDecoder:
    """Build ArcticForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    if config.get("sliding_window") is not None:
        raise refuse(config, "sliding_window", "attends to everything")
    keys = {"experts": "num_local_experts", "size": "intermediate_size"}
    experts = mixture(config, RouterSpec(renormalize=True), names=EXPERTS, **keys)
    every = config.size("moe_layer_frequency")
    layers = layer_specs(config, ctx, default_theta=DEFAULT_THETA)
    layers = with_experts(layers, experts, lambda i: (i + 1) % every == 0)
    spec = decoder_spec(config, layers, names=NAMES)
    return ArcticDecoder(spec, ctx, flag(config, "parallel_attn_mlp_res"))


class ArcticDecoder(DenseDecoder):
    """See `DenseDecoder`.

    Args:
        beside: Experts lie beside attention and an MLP of their layer.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, beside: bool) -> None:
        self._beside = beside
        super().__init__(spec, ctx)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        """Build this stage's layers, where experts lie beside those that have norms themselves."""
        if not self._beside:
            super()._build_layers(spec, ctx, own, rotaries)
            return
        self._first_norm = None
        self.layers = [ArcticLayer(spec, ctx, i, rotaries) for i in own]


class ArcticLayer:
    """Norm, attention, norm and MLP, each of the two added to the residual, and experts beside."""

    input_quant = None

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: dict[Rotation, Rotary]
    ) -> None:
        prefix, layer, names = spec.names.layer.format(i), spec.layers[i], spec.names
        self._mixer = AttentionMixer(spec, ctx, i, rotaries)
        self._input_norm = plain_norm(spec, ctx, f"{prefix}{names.input_norm}")
        self._experts, behind = None, f"{prefix}{names.mlp_norm}"
        if layer.mixture is not None:
            self._experts = build_mlp(spec, ctx, i)
            self._experts_norm = plain_norm(spec, ctx, behind)
            dense = tuple(replace(one, mixture=None) for one in spec.layers)
            spec = replace(spec, layers=dense, names=BESIDE, intermediate_size=spec.hidden_size)
            behind = f"{prefix}residual_layernorm"
        self._mlp = build_mlp(spec, ctx, i)
        self._mlp_norm = build_add_norm(spec, ctx, behind, self._mlp.input_quant, 1.0)
        last = i + 1 == len(spec.layers)
        self._final = build_add_norm(spec, ctx, names.final_norm if last else None, None, 1.0)

    def __call__(
        self, hidden: Tensor | Quantized, residual: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """See `hotshoe_models.decoder.Layer`; `hidden` is not read."""
        out = self._mixer(self._input_norm(residual), batch, keep)
        residual = residual if keep is None else residual[keep]
        beside = None
        if self._experts is not None:
            beside = self._experts(self._experts_norm(residual))
        normed, residual = self._mlp_norm(out, residual)
        out = self._mlp(normed)
        return self._final(out if beside is None else out.add_(beside), residual)
