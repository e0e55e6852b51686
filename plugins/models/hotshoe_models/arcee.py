"""Arcee (AFM 4.5B) and the text part of Cosmos 3 Edge: Llama's shape with MLPs of squared ReLU,
without gates.

Positions of images have several coordinates; of text all are the same. Defaults are those of
transformers' ArceeConfig and Cosmos3EdgeTextConfig.
"""

from dataclasses import replace

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
EDGE_DEFAULTS = {
    **LLAMA,
    "vocab_size": 131072,
    "hidden_size": 2048,
    "intermediate_size": 9216,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "relu2",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}
EDGE_THETA = 100_000_000.0
NAMES = WeightNames(gate_up=("mlp.up_proj",))
#: As published files have them: without a prefix, by the names of a model that makes images.
EDGE_NAMES = replace(NAMES, bare=(r"^(?=(embed_tokens|norm|layers)\.)", "model."))
EDGE_RENAMES = (
    *((rf"\.self_attn\.to_{part}\.", f".self_attn.{part}_proj.") for part in "qkv"),
    (r"\.self_attn\.to_out\.", ".self_attn.o_proj."),
    (r"\.mlp\.fc1\.", ".mlp.up_proj."),
    (r"\.mlp\.fc2\.", ".mlp.down_proj."),
)
#: Of the part that makes images and actions.
MAKES = (
    r"(?:^|\.)(?:action_modality_embed|action_proj_(?:in|out)|time_embedder|proj_(?:in|out))(?:\.|$)",
    r"_moe_gen\.",
    r"\.self_attn\.(?:add_[qkv]_proj|to_add_out|norm_added_[qk]|k_norm_und_for_gen)\.",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build ArceeForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    act = activation(config, "hidden_act", PLAIN_ACTIVATIONS)
    layers = layer_specs(config, ctx)
    return DenseDecoder(llama_spec(config, layers, activation=act, gated=False, names=NAMES), ctx)


def build_edge(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Cosmos3EdgeForConditionalGeneration."""
    config = with_defaults(config, EDGE_DEFAULTS)
    act = activation(config, "hidden_act", PLAIN_ACTIVATIONS)
    layers = layer_specs(config, ctx, default_theta=EDGE_THETA)
    for pattern, name in EDGE_RENAMES:
        ctx.weights.rename(pattern, name)
    ctx.weights.ignore(MAKES, "the part that makes images and actions")
    spec = llama_spec(config, layers, activation=act, gated=False, names=EDGE_NAMES)
    return DenseDecoder(spec, ctx)
