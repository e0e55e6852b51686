"""Command R (Cohere) and Command R7B, Command A (Cohere 2): one layer norm without bias before
attention and MLP, which run in parallel; scaled logits.

Layers of Cohere 2 with a window rotate q and k, the others do not. Defaults are those of
transformers' CohereConfig and Cohere2Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    interleaved,
    layer_specs,
    layer_types,
    number,
    optional_size,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "attention_bias": False,
    "use_qk_norm": False,
}
COHERE2_DEFAULTS = {**DEFAULTS, "sliding_window": 4096, "layer_types": None}
COHERE_THETA = 500_000.0
#: Every so-manieth layer of Cohere 2 attends to everything.
COHERE2_PATTERN = 4
NAMES = WeightNames(mlp_norm=None)


def build_cohere(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build CohereForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    if flag(config, "use_qk_norm"):
        raise refuse(config, "use_qk_norm", "is served without norms of q and k")
    return _decoder(config, ctx, layer_specs(config, ctx, default_theta=COHERE_THETA))


def build_cohere2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Cohere2ForCausalLM."""
    config = with_defaults(config, COHERE2_DEFAULTS)
    every = config.size("sliding_window_pattern", COHERE2_PATTERN)
    types = layer_types(config, lambda i: SLIDING if (i + 1) % every else FULL)
    layers = layer_specs(config, ctx, types, optional_size(config, "sliding_window"))
    still = [replace(layer, rotation=None) for layer in layers]
    pairs = zip(types, layers, still, strict=True)
    return _decoder(config, ctx, tuple(moving if t == SLIDING else s for t, moving, s in pairs))


def _decoder(config: ModelConfig, ctx: BuildContext, layers: tuple[LayerSpec, ...]) -> DenseDecoder:
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        interleaved(layers),
        norm="layer",
        norm_bias=False,
        norm_eps=number(config, "layer_norm_eps"),
        parallel=True,
        logits_divisor=1.0 / number(config, "logit_scale"),
        qkv_bias=bias,
        o_bias=bias,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
