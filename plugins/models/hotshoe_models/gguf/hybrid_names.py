"""What GGUF files call the tensors of hybrids; see `names`.

Source: the tensor names of the gguf package.
"""

from hotshoe_models.gguf.names import (
    BOTH,
    DEEPSEEK_NAMES,
    GEMMA_NAMES,
    GRANITE_MOE_NAMES,
    MOE_NAMES,
    NAMES,
    OUTER,
)

#: Of the gated delta rule, as Qwen3.5 has its matrices; the first file of Qwen3-Next had one.
_DELTA_NAMES = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_a": "linear_attn.A_log",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "post_attention_norm": "post_attention_layernorm",
}
QWEN_NEXT_NAMES = {
    **MOE_NAMES,
    **_DELTA_NAMES,
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
}
QWEN35_NAMES = {
    **MOE_NAMES,
    **_DELTA_NAMES,
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
}
#: Beside a layer that predicts further tokens, in Qwen's checkpoints.
QWEN_FURTHER_NAMES = {
    "nextn.eh_proj": "mtp.fc",
    "nextn.enorm": "mtp.pre_fc_norm_embedding",
    "nextn.hnorm": "mtp.pre_fc_norm_hidden",
    "nextn.shared_head_norm": "mtp.norm",
}
LFM2_OUTER = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
}
LFM2_NAMES = {
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    **{f"shortconv.{part}": f"conv.{part}" for part in ("conv", "in_proj", "out_proj")},
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b.bias": "feed_forward.expert_bias",
}
#: Of experts, as some checkpoints call them.
_MATRICES = {"gate": "w1", "up": "w3", "down": "w2"}
for _part, _name in _MATRICES.items():
    LFM2_NAMES[f"ffn_{_part}"] = f"feed_forward.{_name}"
    LFM2_NAMES[f"ffn_{_part}_exps"] = f"feed_forward.experts.{{}}.{_name}"


def _states(prefix: str) -> dict[str, str]:
    """Return names of a Mamba-2 block."""
    parts = {
        "ssm_in": "in_proj",
        "ssm_conv1d": "conv1d",
        "ssm_dt.bias": "dt_bias",
        "ssm_a": "A_log",
        "ssm_d": "D",
        "ssm_norm": "norm",
        "ssm_out": "out_proj",
    }
    return {part: f"{prefix}.{name}" for part, name in parts.items()}


GRANITE_HYBRID_NAMES = {
    **GRANITE_MOE_NAMES,
    **_states("mamba"),
    "ffn_gate": "shared_mlp.gate_proj",
    "ffn_up": "shared_mlp.up_proj",
    "ffn_down": "shared_mlp.output_linear",
}
FALCON_H1_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.final_layernorm",
    "output": "lm_head",
}
#: The norm before the MLP has no ending in files.
FALCON_H1_NAMES = {
    **NAMES,
    **_states("mamba"),
    "ffn_norm": "pre_ff_layernorm.weight",
    "ffn_norm.weight": "pre_ff_layernorm.weight",
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
}
BACKBONE_OUTER = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
}
MAMBA2_NAMES = {"attn_norm": "norm", **_states("mixer")}
MAMBA_NAMES = {
    **MAMBA2_NAMES,
    "ssm_x": "mixer.x_proj",
    "ssm_dt": "mixer.dt_proj",
    "ssm_dt.bias": "mixer.dt_proj.bias",
}
JAMBA_NAMES = {
    **{part: name.replace("mlp.", "feed_forward.") for part, name in MOE_NAMES.items()},
    **{part: name.replace("mixer.", "mamba.") for part, name in MAMBA_NAMES.items()},
    "attn_norm": "input_layernorm",
    "ffn_norm": "pre_ff_layernorm",
    "ffn_gate_inp": "feed_forward.router",
    **{f"ssm_{part}_norm": f"mamba.{part}_layernorm" for part in ("dt", "b", "c")},
}
NEMOTRON_H_NAMES = {
    **MAMBA2_NAMES,
    **{f"attn_{part}": f"mixer.{part}_proj" for part in "qkv"},
    "attn_output": "mixer.o_proj",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
    "ffn_gate_inp": "mixer.gate",
    "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
    "ffn_up_exps": "mixer.experts.{}.up_proj",
    "ffn_down_exps": "mixer.experts.{}.down_proj",
    "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj",
    "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
}
#: Kimi delta attention, beside DeepSeek's latents.
KIMI_LINEAR_NAMES = {
    **DEEPSEEK_NAMES,
    **{f"ssm_conv1d_{part}": f"self_attn.{part}_conv1d" for part in "qkv"},
    **{f"ssm_{part}": f"self_attn.{part}_proj" for part in ("f_a", "f_b", "g_a", "g_b")},
    "ssm_beta": "self_attn.b_proj",
    "ssm_a": "self_attn.A_log",
    "ssm_dt.bias": "self_attn.dt_bias",
    "ssm_norm": "self_attn.o_norm",
    **{f"ffn_{part}_exps": f"mlp.experts.{{}}.{name}" for part, name in _MATRICES.items()},
}
GEMMA4_OUTER = {
    **OUTER,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_INPUT_NAMES = {
    **GEMMA_NAMES,
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
GEMMA4_NAMES = {
    **_INPUT_NAMES,
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale.weight",
    "ffn_gate_up_exps": f"experts.{{}}.gate_proj{BOTH}up_proj",
    "ffn_down_exps": "experts.{}.down_proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    **{f"post_ffw_norm_{i}": f"post_feedforward_layernorm_{i}" for i in (1, 2)},
}
#: Matrices of all streams but one lie in one tensor.
GEMMA3N_OUTER = {
    **GEMMA4_OUTER,
    "altup_proj": "model.altup_projections.{}",
    "altup_unembd_proj": "model.altup_unembed_projections.{}",
}
GEMMA3N_NAMES = {
    **_INPUT_NAMES,
    "altup_correct_coef": "altup.correction_coefs",
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
