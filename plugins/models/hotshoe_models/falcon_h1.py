"""Falcon-H1: in every layer attention and a Mamba-2 block side by side, with many factors.

Defaults are those of transformers' FalconH1Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import llama_spec
from hotshoe_models.spec import StateBlock, WeightNames
from hotshoe_models.states import state_block
from hotshoe_models.values import flag, head_dim, layer_specs, number, refuse, with_defaults

FACTORS = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "lm_head_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)
DEFAULTS = {
    "vocab_size": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "mlp_bias": False,
    "projectors_bias": False,
    "mamba_d_ssm": 1024,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_norm_before_gate": True,
    "mamba_rms_norm": False,
    "mlp_multipliers": None,
    "ssm_multipliers": None,
    **dict.fromkeys(FACTORS, 1.0),
}
#: Why the factor of logits is wanted.
MISSING = (
    "multiplies logits by it, which a GGUF file without output.weight leaves out; give the "
    "checkpoint's lm_head_multiplier, divided by its embedding_multiplier, with --hf-overrides"
)
NAMES = WeightNames(
    final_norm="model.final_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    mlp_norm="pre_ff_layernorm",
    unused=(r"\.rotary_emb\.inv_freq$", r"\.mup_vector$"),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build FalconH1ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    if config.get("lm_head_multiplier") is None:
        raise refuse(config, "lm_head_multiplier", MISSING)
    gate, down = _factors(config, "mlp_multipliers", 2)
    spec = llama_spec(
        config,
        tuple(replace(layer, mixer="attention+state") for layer in layer_specs(config, ctx)),
        names=NAMES,
        # Keys are multiplied before they are rotated, which is linear.
        attention_scale=head_dim(config) ** -0.5 * number(config, "key_multiplier"),
        embedding_scale=number(config, "embedding_multiplier"),
        logits_divisor=1 / number(config, "lm_head_multiplier"),
        gate_scale=gate,
        mlp_scale=down,
        state=_states(config, ctx),
    )
    return DenseDecoder(spec, ctx)


def _states(config: ModelConfig, ctx: BuildContext) -> StateBlock:
    where = "before" if flag(config, "mamba_norm_before_gate") else "after"
    first = number(config, "ssm_in_multiplier")
    z, x, b, c, dt = (first * factor for factor in _factors(config, "ssm_multipliers", 5))
    return state_block(
        config,
        ctx,
        inner=None if config.get("mamba_d_ssm") is None else config.size("mamba_d_ssm"),
        norm=where if flag(config, "mamba_rms_norm") else "none",
        eps=number(config, "rms_norm_eps"),
        in_bias=flag(config, "mamba_proj_bias"),
        conv_bias=flag(config, "mamba_conv_bias"),
        out_bias=flag(config, "projectors_bias"),
        scales=(z, x, b, c, dt),
        attention_in=number(config, "attention_in_multiplier"),
        attention_out=number(config, "attention_out_multiplier"),
        state_out=number(config, "ssm_out_multiplier"),
    )


def _factors(config: ModelConfig, name: str, count: int) -> list[float]:
    """Return a list of factors; null is all ones."""
    given = config.get(name, [1.0] * count)
    if not isinstance(given, list) or len(given) != count:
        raise refuse(config, name, f"needs a list of {count} numbers")
    if not all(type(factor) in (int, float) for factor in given):
        raise refuse(config, name, f"needs a list of {count} numbers")
    return [float(factor) for factor in given]
