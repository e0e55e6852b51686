"""Arcee (AFM 4.5B): Llama's shape with MLPs of squared ReLU, without gates.

Defaults are those of transformers' ArceeConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import DEFAULTS as LLAMA
from hotshoe_models.llama import llama_spec
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import PLAIN_ACTIVATIONS, activation, layer_specs, with_defaults

DEFAULTS = {
    **LLAMA,
    "hidden_size": 2560,
    "intermediate_size": 18432,
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
NAMES = WeightNames(gate_up=("mlp.up_proj",))


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build ArceeForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    act = activation(config, "hidden_act", PLAIN_ACTIVATIONS)
    layers = layer_specs(config, ctx)
    return DenseDecoder(llama_spec(config, layers, activation=act, gated=False, names=NAMES), ctx)
