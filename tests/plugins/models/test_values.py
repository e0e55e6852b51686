"""Configurations that cannot be served are refused by the name of their key, before any weight."""

from pathlib import Path

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe.slots.base import resolve_lazy
from hotshoe_models.plugin import ARCHITECTURES

SMALL = {
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}


def build(architecture, max_model_len=16, **values):
    config = ModelConfig(Path("model"), architecture, {**SMALL, **values}, "float32", 16, ())
    selector = Selector(SLOTS, [], DeviceFacts("plain", "cpu", "", "", 1 << 30, 1))
    ctx = BuildContext(selector, "float32", "float32", 4, max_model_len)
    return resolve_lazy(ARCHITECTURES[architecture])(config, ctx), ctx


BAD = [
    ("Llama", {"hidden_act": "relu2"}, "hidden_act.*relu2"),
    ("Llama", {"hidden_act": ["silu"]}, "hidden_act.*silu"),
    ("Llama", {"hidden_size": 0}, "hidden_size.*0"),
    ("Llama", {"hidden_size": None}, "hidden_size"),
    ("Llama", {"num_hidden_layers": 2.5}, "num_hidden_layers.*2.5"),
    ("Llama", {"rms_norm_eps": "small"}, "rms_norm_eps.*small"),
    ("Llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps.*nan"),
    ("Llama", {"attention_bias": "yes"}, "attention_bias.*yes"),
    ("Llama", {"num_key_value_heads": 5}, "num_key_value_heads.*5"),
    ("Llama", {"rope_scaling": {"type": "spiral"}}, "rope_type.*spiral"),
    ("Llama", {"rope_scaling": {"type": "linear"}}, "factor"),
    ("Llama", {"rope_scaling": [2.0]}, r"rope_parameters.*\[2.0\]"),
    ("Llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor.*0.5"),
    ("Llama", {"quantization_config": {"quant_method": "gptq"}}, "quant_method.*gptq"),
    ("Llama", {"quantization_config": "awq"}, "quant_method.*awq"),
    ("Qwen2", {"layer_types": ["full_attention"]}, "layer_types.*each of 2"),
    ("Qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types.*chunked"),
    ("Qwen2", {"layer_types": [{}, {}]}, "layer_types"),
    ("Qwen2", {"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
    ("Qwen2", {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers.*-1"),
    ("Gemma2", {"hidden_activation": "tanh"}, "hidden_activation.*tanh"),
    ("Gemma2", {"sliding_window": None}, "sliding_window"),
    ("Gemma2", {"final_logit_softcapping": -3.0}, "final_logit_softcapping.*-3"),
    ("Gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("Gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping.*50"),
    ("Gemma3", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters"),
    ("Phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.*linear"),
    ("Phi3", {"rope_scaling": {"type": "su"}}, "short_factor.*not None"),
    (
        "Phi3",
        {"rope_scaling": {"type": "su", "short_factor": [1.0]}},
        "short_factor.*not 1 entries",
    ),
    ("Gemma3", {"rope_parameters": {"full_attention": 4}}, "rope_parameters.*4"),
    ("Gemma3", {"rope_scaling": "linear"}, "rope_scaling.*linear"),
    ("Phi3", {"rope_parameters": 3}, "rope_parameters.*3"),
    ("Granite", {"logits_scaling": 0}, "logits_scaling.*0"),
    ("SmolLM3", {"no_rope_layers": [1]}, "no_rope_layers.*each of 2"),
]


@pytest.mark.parametrize(
    ("family", "values", "message"), BAD, ids=[f"{f}-{'-'.join(v)}" for f, v, _ in BAD]
)
def test_refused_by_name(family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build(f"{family}ForCausalLM", **values)


def windows(ctx):
    return [layer.spec.window for layer in ctx.attention_layers]


def test_an_absent_window_is_the_default_and_null_is_none():
    assert windows(build("MistralForCausalLM")[1]) == [4096, 4096]
    assert windows(build("MistralForCausalLM", sliding_window=None)[1]) == [None, None]


def test_absent_and_null_soft_caps():
    _, ctx = build("Gemma2ForCausalLM")
    assert [layer.spec.softcap for layer in ctx.attention_layers] == [50.0, 50.0]
    _, ctx = build("Gemma2ForCausalLM", attn_logit_softcapping=None)
    assert [layer.spec.softcap for layer in ctx.attention_layers] == [None, None]


def test_windows_follow_the_family_rule_or_the_list():
    assert windows(build("Gemma2ForCausalLM", num_hidden_layers=3)[1]) == [4096, None, 4096]
    every_sixth = [512] * 5 + [None] + [512]
    ctx = build("Gemma3ForCausalLM", num_hidden_layers=7, sliding_window=512)[1]
    assert windows(ctx) == every_sixth
    types = ["full_attention", "sliding_attention"]
    assert windows(build("Gemma3ForCausalLM", layer_types=types)[1]) == [None, 4096]
    on = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    assert windows(build("Qwen3ForCausalLM", **on)[1]) == [None, 9]
    assert windows(build("Qwen3ForCausalLM", **on | {"use_sliding_window": False})[1]) == [None] * 2


def test_the_embedding_factor_is_rounded_to_the_models_type():
    config = ModelConfig(Path("m"), "Gemma2ForCausalLM", {**SMALL, "hidden_size": 3072}, "", 16, ())
    selector = Selector(SLOTS, [], DeviceFacts("plain", "cpu", "", "", 1 << 30, 1))
    resolve_lazy(ARCHITECTURES["Gemma2ForCausalLM"])(
        config, BuildContext(selector, "bfloat16", "bfloat16", 4, 16)
    )
    (spec,) = [spec for slot, spec in selector.decisions if slot == "embedding"]
    assert spec.scale == 55.5


#: Published models: the essentials of their config.json, and the parameters they are known to have.
PUBLISHED = {
    "Llama-3.2-1B": (
        "LlamaForCausalLM",
        1_235_814_400,
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "tie_word_embeddings": True,
        },
    ),
    "SmolLM2-135M": (
        "LlamaForCausalLM",
        134_515_008,
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
    ),
    "Mistral-7B-v0.1": ("MistralForCausalLM", 7_241_732_096, {}),
    "Qwen2.5-0.5B": (
        "Qwen2ForCausalLM",
        494_032_768,
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3-0.6B": (
        "Qwen3ForCausalLM",
        596_049_920,
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
    ),
    "gemma-2-2b": ("Gemma2ForCausalLM", 2_614_341_888, {}),
    "gemma-3-1b": (
        "Gemma3ForCausalLM",
        999_885_952,
        {
            "vocab_size": 262144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
        },
    ),
    "Phi-3-mini-4k": ("Phi3ForCausalLM", 3_821_079_552, {}),
    "SmolLM3-3B": ("SmolLM3ForCausalLM", 3_075_098_624, {}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_parameters(name):
    architecture, parameters, values = PUBLISHED[name]
    config = ModelConfig(Path(name), architecture, values, "float32", 16, ())
    selector = Selector(SLOTS, [], DeviceFacts("plain", "cpu", "", "", 1 << 30, 1))
    ctx = BuildContext(selector, "float32", "float32", 16, 16)
    resolve_lazy(ARCHITECTURES[architecture])(config, ctx)
    total = 0
    for expected in ctx.weights.expected.values():
        numel = 1
        for size in expected.shape:
            numel *= size
        total += numel
    assert total == parameters
