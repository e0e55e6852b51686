"""SmallThinker 4B-A0.6B and 21B-A3B: experts with gates of ReLU, chosen in front of attention by
the residual as it is; layers without a window do not rotate where others have one.

Source: the technical report and the code beside the checkpoints, whose configuration class has
these defaults.
"""

from dataclasses import replace

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, MoE, MoeNames, Rotary, Rotation
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixers import Mixer
from hotshoe_models.mixtures import mixture, with_experts
from hotshoe_models.per_layer import PerLayerDecoder, norm
from hotshoe_models.shared import build_mixer
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "num_hidden_layers": 32,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "rope_layout": None,
    "sliding_window_layout": None,
    "sliding_window_size": 4096,
    "moe_num_primary_experts": 32,
    "moe_num_active_primary_experts": 4,
    "moe_ffn_hidden_size": 768,
    "moe_primary_router_apply_softmax": False,
    "tie_word_embeddings": True,
}
#: The only values served of options that first files have.
FIXED = {"use_qk_norm": False, "moe_enable_early_router": True}
FIXED |= {"moe_enable_secondary_experts": False}
EXPERT = "block_sparse_moe.experts.{}."
NAMES = MoeNames(
    router="block_sparse_moe.primary_router",
    gate_up=(f"{EXPERT}gate", f"{EXPERT}up"),
    down=f"{EXPERT}down",
)
#: Of silu(x) = x / (1 + exp(-slope * x)), which is nowhere farther from relu(x) than 0.28 / slope.
SLOPE = float(1 << 24)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build SmallThinkerForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    for key, value in FIXED.items():
        if config.get(key, value) != value:
            raise refuse(config, key, f"is served with {value} alone")
    if not all(_layout(config, "moe_layer_layout", True)):
        raise refuse(config, "moe_layer_layout", "has experts in every layer")
    slides = _layout(config, "sliding_window_layout", False)
    types = [SLIDING if slide else FULL for slide in slides]
    window = config.size("sliding_window_size") if any(slides) else None
    layers = [
        layer if rotated else replace(layer, rotation=None)
        for layer, rotated in zip(
            layer_specs(config, ctx, types, window),
            _layout(config, "rope_layout", True),
            strict=True,
        )
    ]
    scoring = "softmax" if flag(config, "moe_primary_router_apply_softmax") else "sigmoid"
    experts = mixture(
        config,
        RouterSpec(scoring, renormalize=True),
        experts="moe_num_primary_experts",
        top_k="moe_num_active_primary_experts",
        size="moe_ffn_hidden_size",
        activation="silu",
        alpha=SLOPE,
        names=NAMES,
    )
    spec = decoder_spec(
        config,
        with_experts(layers, experts, lambda i: True),
        intermediate_size=experts.intermediate_size,
        activation="silu",
    )
    return SmallThinkerDecoder(spec, ctx)


def _layout(config: ModelConfig, key: str, default: bool) -> list[bool]:
    """Return which layers have something, as a list of 0 and 1 says."""
    found, layers = config.get(key), config.size("num_hidden_layers")
    if found is None:
        return [default] * layers
    if not isinstance(found, list) or len(found) != layers or not all(n in (0, 1) for n in found):
        raise refuse(config, key, f"needs 0 or 1 for each of {layers} layers")
    return [bool(each) for each in found]


class EarlyLayer:
    """Attention, then experts that were chosen in front of it."""

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        mixers: dict[int, Mixer],
    ) -> None:
        prefix, experts = spec.names.layer.format(i), spec.layers[i].mixture
        assert experts is not None
        self._input_norm = norm(spec, ctx, f"{prefix}{spec.names.input_norm}")
        self._mixer = mixers[i] = build_mixer(spec, ctx, i, rotaries, mixers)
        self._mlp_norm = norm(spec, ctx, f"{prefix}{spec.names.mlp_norm}")
        self._experts = MoE(ctx, prefix, experts, spec.quantizes("experts", ctx.format))

    def __call__(
        self, residual: Tensor, own: Tensor | None, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """Map the residual [num_tokens, hidden_size] to the next layer's, of the tokens at keep."""
        out = self._mixer(self._input_norm(residual), batch, keep)
        judged = residual if keep is None else residual[keep]
        residual = judged + out
        return residual + self._experts(self._mlp_norm(residual), judged)


class SmallThinkerDecoder(PerLayerDecoder):
    """See `PerLayerDecoder`; the state is the residual."""

    layer_type = EarlyLayer
