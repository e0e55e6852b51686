"""Nemotron 4 and Minitron: layer norms whose weights are around zero, MLPs of squared ReLU, half of
each head rotated.

Defaults are those of transformers' NemotronConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import DEFAULTS as LLAMA
from hotshoe_models.llama import llama_spec
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    layer_specs,
    number,
    with_defaults,
)

DEFAULTS = {
    **{key: value for key, value in LLAMA.items() if key != "rms_norm_eps"},
    "vocab_size": 256000,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_attention_heads": 48,
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
    "norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
}
NAMES = WeightNames(gate_up=("mlp.up_proj",))


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build NemotronForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    spec = llama_spec(
        config,
        layer_specs(config, ctx, partial_rotary=True),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "norm_eps"),
        norm_offset=1.0,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
