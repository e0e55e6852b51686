"""EXAONE 4: norms behind each block and none before, norms of q and k per head. K-EXAONE: norms
before each block, experts behind a sigmoid with correction, and a shared one.

Layers that predict further tokens have the form that vLLM's modules `exaone_moe_mtp` and
`exaone4_5_mtp` read. Where some layers have a window, the others do not rotate q and k. Defaults
are those of transformers' Exaone4Config and ExaoneMoeConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import add_further, further_type
from hotshoe_models.llama import SHAPE
from hotshoe_models.mixtures import (
    grouped_router,
    mixture,
    sparse_types,
    with_expert_defaults,
    with_experts,
)
from hotshoe_models.olmo import NAMES as OLMO
from hotshoe_models.qwen import QWEN3_NAMES
from hotshoe_models.qwen_next import COUNT, FURTHER, FURTHER_LAYER
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import (
    FULL,
    SLIDING,
    count,
    decoder_spec,
    layer_specs,
    layer_types,
    optional_size,
    with_defaults,
)

DEFAULTS = {
    **SHAPE,
    "vocab_size": 102400,
    "intermediate_size": 16384,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "layer_types": None,
}
#: Every so-manieth layer attends to everything.
PATTERN = 4
NAMES = replace(OLMO, wide_qk_norm=False)
MOE_DEFAULTS = {
    **{key: value for key, value in DEFAULTS.items() if key != "attention_bias"},
    "sliding_window_pattern": PATTERN,
    "mlp_layer_types": None,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 1,
}
EXPERTS = MoeNames(correction="mlp.e_score_correction_bias")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Exaone4ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    spec = decoder_spec(config, exaone_layers(config, ctx, _types(config)), names=NAMES)
    model, further = DenseDecoder(spec, ctx), 0
    if config.architecture.startswith("Exaone4_5"):
        ctx.weights.ignore([r"^mtp\."], "layers that predict further tokens")
        further = config.size(COUNT, 1) if config.get(COUNT, 1) else 0
    return add_further(model, spec, ctx, further, FURTHER, FURTHER_LAYER, spec.layers[:1])


def build_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build ExaoneMoeForCausalLM."""
    config = with_expert_defaults(config, MOE_DEFAULTS)
    experts = mixture(
        config,
        grouped_router(config, "num_experts"),
        shared_size=count(config, "num_shared_experts") * config.size("moe_intermediate_size"),
        names=EXPERTS,
    )
    ctx.weights.ignore([r"^mtp\."], "layers that predict further tokens")
    types = _types(config)
    layers = with_experts(exaone_layers(config, ctx, types), experts, sparse_types(config))
    spec = decoder_spec(config, layers, names=QWEN3_NAMES)
    # The layer that predicts further tokens has no experts.
    own = exaone_layers(
        config, ctx, [further_type(config, "mtp_layer_types", types[0], (FULL, SLIDING))]
    )
    number, model = count(config, "num_nextn_predict_layers"), DenseDecoder(spec, ctx)
    return add_further(model, spec, ctx, number, FURTHER, FURTHER_LAYER, own)


def _types(config: ModelConfig) -> list[str]:
    window = optional_size(config, "sliding_window")
    windowed = window is not None and config.get("layer_types") is None
    every = config.size("sliding_window_pattern", PATTERN) if windowed else 1
    return layer_types(config, lambda i: SLIDING if (i + 1) % every else FULL)


def exaone_layers(
    config: ModelConfig, ctx: BuildContext, types: list[str]
) -> tuple[LayerSpec, ...]:
    """Describe layers of these types; with a window, those without one do not rotate."""
    window = optional_size(config, "sliding_window")
    return tuple(
        layer if kind == SLIDING or window is None else replace(layer, rotation=None)
        for kind, layer in zip(types, layer_specs(config, ctx, types, window), strict=True)
    )
