"""Ouro 1.4B and 2.6B: the same layers run several times, each time over a cache of its own.

Every round ends with the final norm, whose result the next one starts from. The published code
ends a text at the last round unless a threshold below 1 is set; a gate that would measure it is
not read. Sources: Zhu et al. 2025, arXiv:2510.25741, and the code beside these checkpoints.
"""

from __future__ import annotations

from copy import copy

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Rotary, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder, Layer
from hotshoe_models.llama import SHAPE
from hotshoe_models.mixers import AttentionMixer
from hotshoe_models.projections import build_attention
from hotshoe_models.spec import DecoderSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    number,
    optional_size,
    refuse,
    refuse_stages,
    with_defaults,
)
from hotshoe_models.whole import Whole

DEFAULTS = {
    **SHAPE,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
    "total_ut_steps": 4,
    "early_exit_threshold": 1.0,
}
NAMES = WeightNames(
    post_attention_norm="input_layernorm_2",
    post_mlp_norm="post_attention_layernorm_2",
    unused=(r"\.rotary_emb\.inv_freq$", r"^(model\.)?early_exit_gate\."),
)
#: Rounds, each of which takes a cache as large as that of a model without them.
MOST_ROUNDS = 64


def build(config: ModelConfig, ctx: BuildContext) -> LoopedDecoder:
    """Build OuroForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    rounds = config.size("total_ut_steps")
    if rounds > MOST_ROUNDS:
        raise refuse(config, "total_ut_steps", f"has up to {MOST_ROUNDS} rounds")
    threshold = config.get("early_exit_threshold")
    if threshold is not None and number(config, "early_exit_threshold") < 1:
        raise refuse(config, "early_exit_threshold", "is served with 1, so that every round runs")
    if config.get("early_exit_step") not in (None, rounds - 1):
        raise refuse(config, "early_exit_step", "ends at its last round; change total_ut_steps")
    window = optional_size(config, "sliding_window") if flag(config, "use_sliding_window") else None
    first = config.size("max_window_layers")
    types = layer_types(config, lambda i: FULL if window is None or i < first else SLIDING)
    spec = decoder_spec(config, layer_specs(config, ctx, types, window), names=NAMES)
    return LoopedDecoder(spec, ctx, rounds)


class LoopedDecoder(DenseDecoder):
    """See `DenseDecoder`.

    Args:
        rounds: How often the layers run.

    Raises:
        ConfigError: Stages are to divide the layers.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, rounds: int) -> None:
        refuse_stages(ctx, "all layers of this model run several times")
        self._further = list[list[Layer]]()
        self._rounds = rounds
        super().__init__(spec, ctx)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        """Build the layers, and for each further round the same ones over other caches."""
        super()._build_layers(spec, ctx, own, rotaries)
        for _ in range(1, self._rounds):
            again = [_again(one, spec, ctx, i, rotaries) for i, one in enumerate(self.layers)]
            self._further.append(again)

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        rounds = [self.layers, *self._further]
        for layers in rounds:
            assert self._first_norm is not None
            residual, normed = hidden, self._first_norm(hidden)
            for layer in layers:
                last = layers is rounds[-1] and layer is layers[-1]
                keep = batch.outputs_at if last else None
                normed, residual = layer(normed, residual, batch, keep)
            assert isinstance(normed, Tensor)
            hidden = normed
        return hidden


def _again(
    layer: Layer | Whole,
    spec: DecoderSpec,
    ctx: BuildContext,
    i: int,
    rotaries: dict[Rotation, Rotary],
) -> Layer:
    """Return another use of a layer's weights, over a cache of its own."""
    assert isinstance(layer, Layer)
    assert isinstance(layer.mixer, AttentionMixer)
    other, mixer = copy(layer), copy(layer.mixer)
    mixer.attention = build_attention(spec, ctx, i, rotaries)
    other.mixer = mixer
    return other
