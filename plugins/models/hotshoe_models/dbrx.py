"""DBRX: layer norms without biases, clipped q, k and v, experts in every layer.

A tensor of a checkpoint holds a matrix of all experts, below each other. Defaults are those of
transformers' DbrxConfig, DbrxAttentionConfig and DbrxFFNConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_experts
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    decoder_spec,
    layer_specs,
    mapping,
    optional_number,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "d_model": 2048,
    "n_heads": 16,
    "n_layers": 24,
    "max_seq_len": 2048,
    "vocab_size": 32000,
    "attn_config": None,
    "ffn_config": None,
    "rope_parameters": None,
    "tie_word_embeddings": False,
}
ATTENTION = {"clip_qkv": None, "kv_n_heads": 1}
EXPERTS = {
    "ffn_act_fn": None,
    "ffn_hidden_size": 3584,
    "moe_num_experts": 4,
    "moe_top_k": 1,
    "moe_normalize_expert_weights": 1.0,
}
#: The usual keys of what the file has under its own.
SPELLINGS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
    "num_key_value_heads": "kv_n_heads",
}
NORM_EPS = 1e-5
INNER = "norm_attn_norm."
NAMES = WeightNames(
    embedding="transformer.wte",
    final_norm="transformer.norm_f",
    layer="transformer.blocks.{}.",
    input_norm=f"{INNER}norm_1",
    mlp_norm=f"{INNER}norm_2",
    qkv=(f"{INNER}attn.Wqkv",),
    o=f"{INNER}attn.out_proj",
    bare=(r"^(?=(wte|blocks|norm_f)\.)", "transformer."),
)
BLOCK = "ffn.experts.mlp."
MATRICES = {part: BLOCK + "{}." + part for part in ("w1", "v1", "w2")}
EXPERT_NAMES = MoeNames(
    router="ffn.router.layer", gate_up=(MATRICES["w1"], MATRICES["v1"]), down=MATRICES["w2"]
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build DbrxForCausalLM."""
    config = _flat(with_defaults(config, DEFAULTS))
    experts = mixture(
        config,
        RouterSpec(renormalize=_renormalizes(config)),
        experts="moe_num_experts",
        top_k="moe_top_k",
        size="ffn_hidden_size",
        names=EXPERT_NAMES,
    )
    layers = with_experts(layer_specs(config, ctx), experts, lambda i: True)
    for i in range(len(layers)):
        prefix = NAMES.layer.format(i)
        for part, name in MATRICES.items():
            each = tuple((f"{prefix}{name.format(e)}.weight",) for e in range(experts.num_experts))
            ctx.weights.unstack(f"{prefix}{BLOCK}{part}", each, transposed=part == "w2")
    spec = decoder_spec(
        config,
        layers,
        norm="layer",
        norm_bias=False,
        norm_eps=NORM_EPS,
        intermediate_size=0,
        qkv_limit=optional_number(config, "clip_qkv"),
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)


def _flat(config: ModelConfig) -> ModelConfig:
    """Return the values of attention and of experts beside the others, by the usual keys."""
    attention = {**ATTENTION, **mapping(config, "attn_config")}
    values = {**config.values, **attention, **EXPERTS, **mapping(config, "ffn_config")}
    values |= {new: values[old] for new, old in SPELLINGS.items()}
    act = values["ffn_act_fn"] or {"name": "silu"}
    values["hidden_act"] = act.get("name", "silu") if isinstance(act, dict) else act
    return replace(config, values={**values, "head_dim": None})


def _renormalizes(config: ModelConfig) -> bool:
    """Tell whether the weights of a token's experts sum to 1."""
    power = config.get("moe_normalize_expert_weights")
    if power not in (None, 1):
        raise refuse(config, "moe_normalize_expert_weights", "divides by sums (1) or not (null)")
    return power is not None
