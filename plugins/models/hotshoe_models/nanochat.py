"""nanochat: norms without weights, one of embeddings among them; heads rotate the other way round,
and q and k are normed behind it. MLPs of squared ReLU without gates.

Defaults are those of transformers' NanoChatConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    flag,
    layer_specs,
    optional_number,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 768,
    "intermediate_size": 8192,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "num_key_value_heads": None,
    "max_position_embeddings": 2048,
    "hidden_act": "relu2",
    "rms_norm_eps": 1e-6,
    "rope_parameters": None,
    "final_logit_softcapping": 15.0,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
#: No norm has weights, so only whether there is a name matters.
NAMES = WeightNames(embedding_norm="model.norm", gate_up=("mlp.fc1",), down="mlp.fc2")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build NanoChatForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        tuple(_backwards(layer) for layer in layer_specs(config, ctx)),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm_weight=False,
        qkv_bias=bias,
        o_bias=bias,
        logits_softcap=optional_number(config, "final_logit_softcapping"),
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)


def _backwards(layer: LayerSpec) -> LayerSpec:
    """Turn against the usual sense. Norms without weights are the same before rotation."""
    assert layer.rotation is not None
    turned = replace(layer.rotation, inv_freq=tuple(-speed for speed in layer.rotation.inv_freq))
    return replace(layer, rotation=turned, unit_qk=True)
