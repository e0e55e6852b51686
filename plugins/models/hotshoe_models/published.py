"""Decoders whose code is published beside their checkpoints, in shapes of other families: EXAONE 3,
InternLM and InternLM 2, Qwen 1, MiniCPM 1, 2 and 4, GLM-4 and ChatGLM 2 and 3 in their first form,
Orion.

Sources: that code, and the keys and tensors of the files. Defaults are those of its configuration
classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import DEFAULTS as LLAMA
from hotshoe_models.llama import llama_spec
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    decoder_spec,
    flag,
    interleaved,
    layer_specs,
    number,
    refuse,
    with_defaults,
)

QWEN_NAMES = WeightNames(
    embedding="transformer.wte",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    input_norm="ln_1",
    mlp_norm="ln_2",
    qkv=("attn.c_attn",),
    o="attn.c_proj",
    gate_up=("mlp.w2", "mlp.w1"),
    down="mlp.c_proj",
    unused=(r"\.rotary_emb\.inv_freq$", r"^transformer\.visual\."),
)
EXAONE_NAMES = replace(
    QWEN_NAMES,
    qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    o="attn.attention.out_proj",
    gate_up=("mlp.c_fc_0", "mlp.c_fc_1"),
    bare=(r"^(?=(wte|h|ln_f)\.)", "transformer."),
    unused=(r"\.rotary\.inv_freq$",),
)
EXAONE_KEYS = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}
INTERNLM2_NAMES = WeightNames(
    embedding="model.tok_embeddings",
    lm_head="output",
    input_norm="attention_norm",
    mlp_norm="ffn_norm",
    qkv=("attention.wqkv",),
    grouped_qkv=True,
    o="attention.wo",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    bare=(r"^(?=(tok_embeddings|layers|norm)\.)", "model."),
)
QWEN_KEYS = {
    "layer_norm_epsilon": "rms_norm_eps",
    "rotary_emb_base": "rope_theta",
    "kv_channels": "head_dim",
}
QWEN_DEFAULTS = {**LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "seq_length": 8192}
MINICPM_DEFAULTS = {
    **LLAMA,
    "tie_word_embeddings": True,
    "scale_emb": 1,
    "scale_depth": 1,
    "dim_model_base": 1,
}
GLM_NAMES = WeightNames(
    embedding="transformer.embedding.word_embeddings",
    final_norm="transformer.encoder.final_layernorm",
    lm_head="transformer.output_layer",
    layer="transformer.encoder.layers.{}.",
    qkv=("self_attention.query_key_value",),
    o="self_attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    unused=(r"\.rotary_pos_emb\.inv_freq$", r"^transformer\.vision\."),
)
GLM_KEYS = {
    "num_layers": "num_hidden_layers",
    "padded_vocab_size": "vocab_size",
    "ffn_hidden_size": "intermediate_size",
    "layernorm_epsilon": "rms_norm_eps",
    "kv_channels": "head_dim",
}
GLM_DEFAULTS = {
    **LLAMA,
    "vocab_size": 65024,
    "intermediate_size": 13696,
    "num_hidden_layers": 28,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "add_bias_linear": False,
    "add_qkv_bias": False,
    "multi_query_attention": False,
    "multi_query_group_num": 1,
    "rope_ratio": 1,
    "rmsnorm": True,
    "post_layer_norm": True,
    "apply_residual_connection_post_layernorm": False,
}
#: Of ChatGLM, times `rope_ratio`.
BASE = 10_000.0


def respelled(config: ModelConfig, keys: Mapping[str, str]) -> ModelConfig:
    """Return the configuration with its keys by the names that other families have for them."""
    values = dict(config.values)
    values |= {name: values[key] for key, name in keys.items() if key in values}
    return replace(config, values=values)


def build_exaone(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build ExaoneForCausalLM."""
    config = with_defaults(respelled(config, EXAONE_KEYS), LLAMA)
    spec = llama_spec(config, layer_specs(config, ctx), names=EXAONE_NAMES)
    return DenseDecoder(spec, ctx)


def build_internlm(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build InternLMForCausalLM, whose attention has biases."""
    config = with_defaults(config, {**LLAMA, "bias": True})
    bias = flag(config, "bias")
    spec = decoder_spec(config, layer_specs(config, ctx), qkv_bias=bias, o_bias=bias)
    return DenseDecoder(spec, ctx)


def build_internlm2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build InternLM2ForCausalLM; as a part of InternVL its output matrix has another prefix, and
    of Mono-InternVL (InternLM2VEForCausalLM) it has further MLPs, for images."""
    ctx.weights.ignore([r"\.feed_forward_ve\."], "MLPs of images: requests with images are refused")
    ctx.weights.rename(r"^model\.output\.", "output.")
    config = with_defaults(config, {**LLAMA, "vocab_size": 103168, "bias": False})
    bias = flag(config, "bias")
    differences = {"qkv_bias": bias, "o_bias": bias, "names": INTERNLM2_NAMES}
    return DenseDecoder(decoder_spec(config, layer_specs(config, ctx), **differences), ctx)


def build_orion(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build OrionForCausalLM, which has layer norms."""
    config = with_defaults(config, LLAMA)
    return DenseDecoder(llama_spec(config, layer_specs(config, ctx), norm="layer"), ctx)


def build_qwen(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build QWenLMHeadModel, also as the text part of Qwen-VL.

    Beyond `seq_length` its code rotates and scales by a text's length.
    """
    config = with_defaults(respelled(config, QWEN_KEYS), QWEN_DEFAULTS)
    changing = [key for key in ("use_dynamic_ntk", "use_logn_attn") if config.get(key) is True]
    if changing and ctx.max_model_len > config.size("seq_length"):
        raise refuse(config, changing[0], "is served up to seq_length; lower --max-model-len")
    spec = decoder_spec(
        config,
        layer_specs(config, ctx),
        intermediate_size=config.size("intermediate_size") // 2,
        activation="silu",
        qkv_bias=True,
        names=QWEN_NAMES,
    )
    return DenseDecoder(spec, ctx)


def build_minicpm(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MiniCPMForCausalLM."""
    config = with_defaults(config, MINICPM_DEFAULTS)
    for key in ("sparse_config", "num_experts"):
        if config.get(key) not in (None, 0):
            raise refuse(config, key, "attends to everything, and has no experts")
    size, count = config.size("hidden_size"), config.size("num_hidden_layers")
    spec = llama_spec(
        config,
        layer_specs(config, ctx),
        embedding_scale=number(config, "scale_emb"),
        residual_scale=number(config, "scale_depth") * count**-0.5,
        logits_divisor=size / config.size("dim_model_base"),
    )
    return DenseDecoder(spec, ctx)


def build_chatglm(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build ChatGLMModel and ChatGLMForConditionalGeneration, which rotate half of each head, also
    as the text part of GLM-4V."""
    config = with_defaults(respelled(config, GLM_KEYS), GLM_DEFAULTS)
    own: dict[str, Any] = {"partial_rotary_factor": 0.5}
    own["rope_theta"] = BASE * number(config, "rope_ratio")
    if flag(config, "multi_query_attention"):
        own["num_key_value_heads"] = config.size("multi_query_group_num")
    config = replace(config, values={**config.values, **own})
    for key, wanted in (
        *(("rmsnorm", True), ("post_layer_norm", True)),
        ("apply_residual_connection_post_layernorm", False),
    ):
        if flag(config, key) is not wanted:
            raise refuse(config, key, f"is described with {wanted}")
    bias = flag(config, "add_bias_linear")
    spec = decoder_spec(
        config,
        interleaved(layer_specs(config, ctx, partial_rotary=True)),
        activation="silu",
        generates=True,
        qkv_bias=bias or flag(config, "add_qkv_bias"),
        o_bias=bias,
        mlp_bias=bias,
        names=GLM_NAMES,
    )
    return DenseDecoder(spec, ctx)
