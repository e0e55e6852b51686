"""Command R (Cohere) and Command R7B, Command A (Cohere 2): one layer norm without bias before
attention and MLP, which run in parallel; scaled logits; in Command R+ a layer norm of each head's q
and k, too. Cohere 2 with experts.

Layers of Cohere 2 with a window rotate q and k, the others do not. Defaults are those of
transformers' CohereConfig, Cohere2Config and Cohere2MoeConfig.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, Mixture
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, sparse_types, with_expert_defaults, with_experts
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    count,
    decoder_spec,
    flag,
    interleaved,
    layer_specs,
    layer_types,
    number,
    optional_number,
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
MOE_DEFAULTS = {
    **{k: v for k, v in COHERE2_DEFAULTS.items() if k not in ("rope_parameters", "use_qk_norm")},
    "head_dim": 128,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "num_experts_per_tok": 2,
    "num_experts": 8,
    "num_shared_experts": 0,
    "shared_expert_combination_strategy": "average",
    "expert_selection_fn": "softmax",
    "mlp_layer_types": None,
    "prefix_dense_sliding_window_pattern": 1,
    "norm_topk_prob": True,
    "prefix_dense_intermediate_size": None,
    "rms_norm_eps": None,
    "sliding_window_pattern": 4,
}
#: How experts that all tokens share join the others: a factor on the sum.
COMBINED = {"average": 0.5, "sum": 1.0}
COHERE_THETA = 500_000.0
#: Every so-manieth layer of Cohere 2 attends to everything.
COHERE2_PATTERN = 4
NAMES = WeightNames(mlp_norm=None)
QK_NORMED = replace(NAMES, qk_norm=("self_attn.q_norm", "self_attn.k_norm"), layer_qk_norm="own")


def build_cohere(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build CohereForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    names = QK_NORMED if flag(config, "use_qk_norm") else NAMES
    return _decoder(config, ctx, layer_specs(config, ctx, default_theta=COHERE_THETA), names=names)


def build_cohere2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Cohere2ForCausalLM."""
    config = with_defaults(config, COHERE2_DEFAULTS)
    every = config.size("sliding_window_pattern", COHERE2_PATTERN)
    types = layer_types(config, lambda i: SLIDING if (i + 1) % every else FULL)
    layers = layer_specs(config, ctx, types, optional_size(config, "sliding_window"))
    still = [replace(layer, rotation=None) for layer in layers]
    pairs = zip(types, layers, still, strict=True)
    return _decoder(config, ctx, tuple(moving if t == SLIDING else s for t, moving, s in pairs))


def build_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Cohere2MoeForCausalLM."""
    config = with_expert_defaults(config, MOE_DEFAULTS)
    dense = (
        count(config, "first_k_dense_replace") if "first_k_dense_replace" in config.values else 0
    )
    config = replace(config, values={**config.values, "first_k_dense_replace": dense})
    sparse, window = sparse_types(config), optional_size(config, "sliding_window")
    first = config.size("prefix_dense_sliding_window_pattern")
    every = config.size("sliding_window_pattern")

    def kind(i: int) -> str:
        own = (i + 1) % first if i < dense else (i - dense + 1) % every
        return SLIDING if own else FULL

    types = layer_types(config, kind)
    layers = tuple(
        layer
        if kind == SLIDING or (first == 1 and not sparse(i))
        else replace(layer, rotation=None)
        for i, (kind, layer) in enumerate(
            zip(types, layer_specs(config, ctx, types, window), strict=True)
        )
    )
    layers = with_experts(layers, _experts(config), sparse)
    own = optional_size(config, "prefix_dense_intermediate_size")
    size = config.size("intermediate_size") if own is None else own
    eps = optional_number(config, "rms_norm_eps")
    norms = {} if eps is None else {"norm": "rms", "norm_eps": eps}
    return _decoder(config, ctx, layers, intermediate_size=size, **norms)


def _experts(config: ModelConfig) -> Mixture:
    """Describe experts of the MLP's size, and shared ones, all in one sum or in the mean of two."""
    scoring, how = config.require("expert_selection_fn"), "shared_expert_combination_strategy"
    if scoring not in ("softmax", "sigmoid"):
        raise refuse(config, "expert_selection_fn", "scores experts by softmax or sigmoid")
    if config.require(how) not in list(COMBINED):
        raise refuse(config, how, f"knows only {', '.join(COMBINED)}")
    shared = count(config, "num_shared_experts") * config.size("intermediate_size")
    whole = scoring == "softmax" or flag(config, "norm_topk_prob")
    return mixture(
        config,
        RouterSpec(scoring, renormalize=whole),
        size="intermediate_size",
        shared_size=shared,
        scale=COMBINED[config.require(how)] if shared else 1.0,
    )


def _decoder(
    config: ModelConfig, ctx: BuildContext, layers: tuple[LayerSpec, ...], **differences: Any
) -> DenseDecoder:
    bias = flag(config, "attention_bias")
    norms = {"norm": "layer", "norm_bias": False, "norm_eps": number(config, "layer_norm_eps")}
    spec = decoder_spec(
        config,
        interleaved(layers),
        parallel=True,
        logits_divisor=1.0 / number(config, "logit_scale"),
        qkv_bias=bias,
        o_bias=bias,
        **{**norms, "names": NAMES, **differences},
    )
    return DenseDecoder(spec, ctx)
