"""Braid: some layers attend, the others keep a state. Its checkpoints are laid out as Bamba's."""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import WeightNames
from hotshoe_models.states import state_block
from hotshoe_models.values import decoder_spec, layer_specs, number, refuse, with_defaults

#: What config.json may leave out.
DEFAULTS = {
    "attn_layer_indices": [],
    "hidden_act": "silu",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "rope_parameters": None,
    "tie_word_embeddings": False,
}
#: Prefixes; those of a layer's parts are relative to the layer's own.
NAMES = WeightNames(
    final_norm="model.final_layernorm",
    mlp_norm="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build BraidForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    attending = config.get("attn_layer_indices")
    if not isinstance(attending, list):
        raise refuse(config, "attn_layer_indices", "needs a list of numbers of layers")
    layers = tuple(
        layer if i in attending else replace(layer, mixer="state", rotation=None)
        for i, layer in enumerate(layer_specs(config, ctx, partial_rotary=True))
    )
    states = state_block(config, ctx, eps=number(config, "rms_norm_eps"), name="mamba")
    return DenseDecoder(decoder_spec(config, layers, state=states, names=NAMES), ctx)
