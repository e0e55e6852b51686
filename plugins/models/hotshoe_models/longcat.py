"""LongCat Flash: layers of two latent attentions each, and experts of which some do nothing.

Defaults are those of transformers' LongcatFlashConfig. The layer that predicts further tokens has
the form that vLLM's module `longcat_flash_mtp` reads.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.deepseek import latent_spec
from hotshoe_models.further import LISTED, add_further
from hotshoe_models.longcat_layers import LongcatDecoder
from hotshoe_models.mixtures import mixture
from hotshoe_models.values import count, number, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 6144,
    "num_layers": 28,
    "num_attention_heads": 64,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "ffn_hidden_size": 12288,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "v_head_dim": 128,
    "qk_head_dim": None,
    "moe_topk": 12,
    "n_routed_experts": 512,
    "zero_expert_num": 256,
    "expert_ffn_hidden_size": 2048,
    "routed_scaling_factor": 6.0,
}
#: What files without a rotary base rotate by.
DEFAULT_THETA = 10_000_000.0
#: Other spellings of keys.
SPELLINGS = {
    "num_experts_per_tok": "moe_topk",
    "intermediate_size": "ffn_hidden_size",
    "moe_intermediate_size": "expert_ffn_hidden_size",
    "num_local_experts": "n_routed_experts",
}
#: What published files say of things that are so in every one of them.
FIXED = {
    "attention_method": "MLA",
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "router_bias": False,
    "zero_expert_type": "identity",
}
#: The layer that predicts further tokens has one attention and one MLP. Files name its parts so.
FURTHER_LAYER = "model.mtp.layers.{}."
FURTHER_RENAMES = (
    (r"^(model\.mtp\.layers\.\d+\.[eh]norm)\.m\.", r"\1."),
    (r"^(model\.mtp\.layers\.\d+\.)transformer_layer\.", r"\1"),
    (r"^model\.mtp\.norm\.", "model.mtp.layers.0.final_layernorm."),
)
EXPERTS = MoeNames(router="mlp.router.classifier", correction="mlp.router.e_score_correction_bias")


def build(config: ModelConfig, ctx: BuildContext) -> LongcatDecoder:
    """Build LongcatFlashForCausalLM."""
    config = _respelled(config)
    for key, value in FIXED.items():
        if config.get(key) not in (None, value):
            raise refuse(config, key, f"knows only {value!r}")
    idle, hidden = count(config, "zero_expert_num"), config.size("hidden_size")
    experts = mixture(
        config,
        RouterSpec(),
        experts="n_routed_experts",
        top_k="moe_topk",
        size="expert_ffn_hidden_size",
        scale=number(config, "routed_scaling_factor"),
        names=EXPERTS,
    )
    spec = latent_spec(config, ctx)
    latent = spec.latent
    assert latent is not None
    # Queries are as long as those of the hidden states would be, and so are normed latents.
    spec = replace(
        spec,
        attention_scale=spec.attention_scale * (hidden / config.size("q_lora_rank")) ** 0.5,
        latent=replace(latent, up_scale=(hidden / latent.latent_dim) ** 0.5),
    )
    ctx.weights.ignore([r"^model\.mtp\."], "layers that predict further tokens")
    if idle:  # matrices that transformers writes for them
        behind = "|".join(str(experts.num_experts + i) for i in range(idle))
        ctx.weights.ignore(
            [rf"\.mlp\.experts\.(?:{behind})\."], "experts that put out what they take"
        )
    for pattern, name in FURTHER_RENAMES:
        ctx.weights.rename(pattern, name)
    model = LongcatDecoder(spec, ctx, experts, idle)
    key = "num_nextn_predict_layers"
    further = 1 if config.get(key) is None else count(config, key)
    further = min(further, 1)  # of several, files have one norm
    return add_further(model, spec, ctx, further, LISTED, FURTHER_LAYER)


def _respelled(config: ModelConfig) -> ModelConfig:
    """Return the configuration by the keys that other families have, which counts pairs once."""
    values = {SPELLINGS.get(key, key): value for key, value in config.values.items()}
    if "num_layers" not in values and "num_hidden_layers" in values:
        halves = config.size("num_hidden_layers")
        if halves % 2:
            raise refuse(config, "num_hidden_layers", "has two attentions in each layer")
        values["num_layers"] = halves // 2
    config = with_defaults(replace(config, values=values), DEFAULTS)
    derived = {
        "num_hidden_layers": config.size("num_layers"),
        "intermediate_size": config.size("ffn_hidden_size"),
        "rope_interleave": True,
    }
    if config.get("rope_theta") is None:
        derived["rope_theta"] = DEFAULT_THETA
    return replace(config, values={**config.values, **derived})
