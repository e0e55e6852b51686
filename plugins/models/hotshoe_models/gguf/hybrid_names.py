"""What GGUF files call the tensors of hybrids; see `names`.

Source: the tensor names of the gguf package.
"""

from hotshoe_models.gguf.names import MOE_NAMES

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
for _part, _name in {"gate": "w1", "up": "w3", "down": "w2"}.items():
    LFM2_NAMES[f"ffn_{_part}"] = f"feed_forward.{_name}"
    LFM2_NAMES[f"ffn_{_part}_exps"] = f"feed_forward.experts.{{}}.{_name}"
