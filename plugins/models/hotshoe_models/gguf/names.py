"""What GGUF files call tensors: tables of parts of names, theirs and those of original checkpoints.

Source: the tensor names of ggml's gguf.md.
"""

#: Tensor names: parts of theirs and of ours; a layer's begin with `blk.N.`.
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: Of norms behind attention and behind the MLP.
POST_NAMES = {
    **NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA_NAMES = {**POST_NAMES, "ffn_norm": "pre_feedforward_layernorm"}
GLM4_NAMES = {
    **NAMES,
    "ffn_up": "mlp.gate_up_proj",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
STARCODER2_NAMES = {**NAMES, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
PHI3_NAMES = {**NAMES, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
#: Between the last parts of names of two matrices whose rows follow each other in one tensor.
BOTH = "|"
APERTUS_NAMES = {**NAMES, "attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"}
#: Of q, k and v in one matrix where layers have them apart.
QKV = {"attn_qkv": f"self_attn.q_proj{BOTH}k_proj{BOTH}v_proj"}
PHI2_OUTER = {**OUTER, "output_norm": "model.final_layernorm"}
PHI2_NAMES = {
    **NAMES,
    **QKV,
    "attn_output": "self_attn.dense",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
#: Tensors that hold a matrix of every expert stand for names with {} for its number.
MOE_NAMES = {
    **NAMES,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_up_exps": f"mlp.experts.{{}}.gate_proj{BOTH}up_proj",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
#: How names end of tensors that hold all experts' matrices.
STACK = "_exps.weight"
MIXTRAL_NAMES = {
    **NAMES,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
GPT_OSS_NAMES = {
    **MOE_NAMES,
    "attn_sinks.weight": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
GRANITE_MOE_NAMES = {
    **MOE_NAMES,
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_shexp": "shared_mlp.gate_proj",
    "ffn_up_shexp": "shared_mlp.up_proj",
    "ffn_down_shexp": "shared_mlp.output_linear",
}
#: Of routers in DeepSeek's manner, with a correction beside them.
ROUTED_NAMES = {
    **MOE_NAMES,
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
#: Layers that predict further tokens come last.
GLM_NAMES = {
    **ROUTED_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    **{f"nextn.{part}": part for part in ("eh_proj", "embed_tokens", "enorm", "hnorm")},
    **{f"nextn.shared_head_{part}": f"shared_head.{part}" for part in ("head", "norm")},
}
AFMOE_NAMES = {
    **ROUTED_NAMES,
    "attn_gate": "self_attn.gate_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_mlp_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_gate_inp": "mlp.router.gate",
    "exp_probs_b.bias": "mlp.expert_bias",
}
EXAONE_MOE_NAMES = {**ROUTED_NAMES, "exp_probs_b.bias": "mlp.e_score_correction_bias"}
LING_NAMES = {**GLM_NAMES, "attn_qkv": "self_attn.query_key_value"}
ERNIE_NAMES = {**ROUTED_NAMES, "exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"}
MINIMAX_NAMES = {
    **MIXTRAL_NAMES,
    "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
}
_M3 = "block_sparse_moe.shared_experts."
MINIMAX3_NAMES = {
    **MINIMAX_NAMES,
    **{f"ffn_{part}_shexp": f"{_M3}{part}_proj" for part in ("gate", "up", "down")},
    **{f"indexer.{p}": f"self_attn.indexer.{p}" for p in ("q_proj", "k_proj", "q_norm", "k_norm")},
}
HUNYUAN_NORMS = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
HUNYUAN_NAMES = {
    **MOE_NAMES,
    **HUNYUAN_NORMS,
    "ffn_gate_inp": "mlp.gate.wg",
    "ffn_gate_shexp": "mlp.shared_mlp.gate_proj",
    "ffn_up_shexp": "mlp.shared_mlp.up_proj",
    "ffn_down_shexp": "mlp.shared_mlp.down_proj",
}
LLAMA4_NAMES = {
    **{part: name.replace("mlp.", "feed_forward.") for part, name in MOE_NAMES.items()},
    "ffn_gate_inp": "feed_forward.router",
}
DEEPSEEK_NAMES = {
    **ROUTED_NAMES,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
GLM_DSA_NAMES = {
    **GLM_NAMES,
    **DEEPSEEK_NAMES,
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
}
MIMO_NAMES = {**ROUTED_NAMES, **QKV, "attn_sinks.weight": "self_attn.attention_sink_bias"}
LAGUNA_NAMES = {**ROUTED_NAMES, "attn_gate": "self_attn.g_proj"}
#: Some files leave out what the correction's name ends with.
HY_V3_NAMES = {
    **GLM_NAMES,
    **dict.fromkeys(("exp_probs_b", "exp_probs_b.bias"), "mlp.expert_bias"),
    "nextn.shared_head_norm": "final_layernorm",
}
STEP_NAMES = {
    **GLM_NAMES,
    "attn_gate": "self_attn.g_proj",
    "nextn.shared_head_head": "transformer.shared_head.output",
    "nextn.shared_head_norm": "transformer.shared_head.norm",
}
#: Of older decoders.
GPT2_OUTER = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
GPT2_NAMES = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
NEOX_OUTER = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
}
NEOX_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
FALCON_OUTER = {**GPT2_OUTER, "token_embd": "transformer.word_embeddings"}
FALCON_NAMES = {
    **NEOX_NAMES,
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
}
FALCON_TWO_NORMS = {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}
BLOOM_OUTER = {**FALCON_OUTER, "token_embd_norm": "transformer.word_embeddings_layernorm"}
MPT_OUTER = {**GPT2_OUTER, "output_norm": "transformer.norm_f"}
MPT_NAMES = {
    "attn_norm": "norm_1",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "ffn_norm": "norm_2",
    "ffn_up": "ffn.up_proj",
    "ffn_down": "ffn.down_proj",
}
_DBRX = "norm_attn_norm."
DBRX_NAMES = {
    "attn_norm": f"{_DBRX}norm_1",
    "attn_qkv": f"{_DBRX}attn.Wqkv",
    "attn_output": f"{_DBRX}attn.out_proj",
    "attn_output_norm": f"{_DBRX}norm_2",
    "ffn_gate_inp": "ffn.router.layer",
    "ffn_gate_exps": "ffn.experts.mlp.{}.w1",
    "ffn_up_exps": "ffn.experts.mlp.{}.v1",
    "ffn_down_exps": "ffn.experts.mlp.{}.w2",
}
CHATGLM_NAMES = {**GLM4_NAMES, **QKV}
BITNET_NAMES = {
    **NAMES,
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
}
#: Of models whose code is published beside their checkpoints.
OPENELM_OUTER = {"token_embd": "transformer.token_embeddings", "output_norm": "transformer.norm"}
OPENELM_NAMES = {
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.qkv_proj",
    "attn_q_norm": "attn.q_norm",
    "attn_k_norm": "attn.k_norm",
    "attn_output": "attn.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "ffn.gate",
    "ffn_up": "ffn.up",
    "ffn_down": "ffn.proj_2",
}
PLAMO_NAMES = {**NAMES, "attn_norm": "norm"}
REFACT_OUTER = {"token_embd": "transformer.wte", "output_norm": "ln_f", "output": "lm_head"}
REFACT_NAMES = {
    "attn_norm": "ln_1",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_gate": "mlp.linear_1",
    "ffn_up": "mlp.linear_3",
    "ffn_down": "mlp.c_proj",
}
GROVE_NAMES = {
    **MOE_NAMES,
    **{f"ffn_{p}_chexps": f"mlp.chunk_experts.{{}}.{p}_proj" for p in ("gate", "up", "down")},
}
_THINKER = "block_sparse_moe."
THINKER_NAMES = {
    **NAMES,
    "ffn_gate_inp": f"{_THINKER}primary_router",
    **{f"ffn_{part}_exps": f"{_THINKER}experts.{{}}.{part}" for part in ("gate", "up", "down")},
}
ARCTIC_NAMES = {
    **MIXTRAL_NAMES,
    "ffn_norm": "residual_layernorm",
    "ffn_norm_exps": "post_attention_layernorm",
    "ffn_gate": "residual_mlp.w1",
    "ffn_up": "residual_mlp.w3",
    "ffn_down": "residual_mlp.w2",
}
_GROK = "moe_block."
GROK_NAMES = {
    "attn_norm": "pre_attn_norm",
    **{f"attn_{part}": f"attn.{part}_proj" for part in ("q", "k", "v")},
    "attn_output": "attn.o_proj",
    "attn_output_norm": "post_attn_norm",
    "ffn_norm": "pre_moe_norm",
    "ffn_gate_inp": f"{_GROK}gate",
    "ffn_gate_exps": f"{_GROK}experts.{{}}.linear",
    "ffn_up_exps": f"{_GROK}experts.{{}}.linear_v",
    "ffn_down_exps": f"{_GROK}experts.{{}}.linear_1",
    **dict.fromkeys(("layer_output_norm", "post_ffw_norm"), "post_moe_norm"),
}
