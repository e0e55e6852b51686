"""Families with code of their own: checkpoints of transformers' nearest family, written as theirs.

Where a family has what no class of transformers has, a model of transformers gets weights with
which it computes the same.
"""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models.conftest import LENGTH, VOCAB, Variant, save_tiny

from hotshoe.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
LAYERS, HEADS, KV_HEADS, SIZE = 3, 4, 2, 64
DIM = SIZE // HEADS


def renamed(tensors: Tensors, *pairs: tuple[str, str]) -> Tensors:
    """Replace parts of names."""
    found = {}
    for name, tensor in tensors.items():
        for old, new in pairs:
            name = re.sub(old, new, name)
        found[name] = tensor
    return found


def stacked(tensors: Tensors, name: str, kv_heads: int = 0, layers: int = LAYERS) -> Tensors:
    """Stack q, k and v of each layer under a name; grouped by kv heads if there is a number."""
    found = dict(tensors)
    for i in range(layers):
        for kind in ("weight", "bias"):
            keys = [f"model.layers.{i}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            parts = [found.pop(key) for key in keys if key in found]
            if kv_heads:
                shares = [part.chunk(kv_heads) for part in parts]
                parts = [torch.cat(group) for group in zip(*shares, strict=True)]
            if parts:
                found[f"model.layers.{i}.{name}.{kind}"] = torch.cat(parts)
    return found


NAMES = (
    ("model.embed_tokens", "transformer.wte"),
    ("model.norm", "transformer.ln_f"),
    ("model.layers", "transformer.h"),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
)


def exaone(tensors: Tensors) -> Tensors:
    mlp = ("mlp.gate_proj", "mlp.c_fc_0"), ("mlp.up_proj", "mlp.c_fc_1"), ("mlp.down", "mlp.c")
    attention = ("self_attn.o_proj", "attn.attention.out_proj"), ("self_attn", "attn.attention")
    return renamed(tensors, *NAMES, *attention, *mlp)


def internlm2(tensors: Tensors, layers: int = LAYERS, kv_heads: int = KV_HEADS) -> Tensors:
    return renamed(
        stacked(tensors, "attention.wqkv", kv_heads, layers),
        ("model.embed_tokens", "model.tok_embeddings"),
        ("lm_head", "output"),
        ("self_attn.o_proj", "attention.wo"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
    )


def mono(tensors: Tensors) -> Tensors:
    """Every layer has another MLP, for images."""
    found = internlm2(tensors)
    return found | {
        name.replace("feed_forward", "feed_forward_ve"): torch.randn_like(tensor)
        for name, tensor in found.items()
        if "feed_forward" in name
    }


def qwen(tensors: Tensors) -> Tensors:
    mlp = ("mlp.gate_proj", "mlp.w2"), ("mlp.up_proj", "mlp.w1"), ("mlp.down_proj", "mlp.c_proj")
    tensors = stacked(tensors, "attn.c_attn")
    return renamed(tensors, *NAMES, ("self_attn.o_proj", "attn.c_proj"), *mlp)


def chatglm(tensors: Tensors) -> Tensors:
    return renamed(
        stacked(tensors, "self_attention.query_key_value"),
        ("model.embed_tokens", "transformer.embedding.word_embeddings"),
        ("model.norm", "transformer.encoder.final_layernorm"),
        ("model.layers", "transformer.encoder.layers"),
        ("lm_head", "transformer.output_layer"),
        ("self_attn.o_proj", "self_attention.dense"),
        ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
        ("mlp.down_proj", "mlp.dense_4h_to_h"),
    )


COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": SIZE,
    "num_attention_heads": HEADS,
    "max_position_embeddings": LENGTH,
}
USUAL = {
    **COMMON,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
}
#: transformers' family and its values, the published config.json, how tensors change.
Family = tuple[str, dict, dict, Callable[[Tensors], Tensors]]
FAMILIES: dict[str, Family] = {
    "ExaoneForCausalLM": (
        "Llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 90.0}},
        {
            **COMMON,
            "intermediate_size": 96,
            "num_layers": LAYERS,
            "num_key_value_heads": KV_HEADS,
            "activation_function": "silu",
            "layer_norm_epsilon": 1e-6,
            "rope_theta": 90.0,
        },
        exaone,
    ),
    "InternLMForCausalLM": (
        "Llama",
        {"attention_bias": True},
        {**USUAL, "bias": True},
        lambda tensors: tensors,
    ),
    "InternLM2ForCausalLM": (
        "Llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 90.0}},
        {**USUAL, "rope_theta": 90.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        internlm2,
    ),
    "InternLM2VEForCausalLM": ("Llama", {}, USUAL, mono),
    "OrionForCausalLM": (
        "StableLm",
        {"partial_rotary_factor": 1.0, "use_qkv_bias": False, "layer_norm_eps": 1e-6},
        USUAL,
        lambda tensors: tensors,
    ),
    "QWenLMHeadModel": (
        "Qwen2",
        {"num_key_value_heads": HEADS},
        {
            **COMMON,
            "intermediate_size": 192,
            "num_hidden_layers": LAYERS,
            "layer_norm_epsilon": 1e-6,
            "kv_channels": DIM,
            "rotary_emb_base": 10000,
            "seq_length": LENGTH,
            "use_dynamic_ntk": True,
        },
        lambda tensors: qwen(tensors) | {"transformer.visual.proj": torch.ones(3)},
    ),
    "MiniCPMForCausalLM": (
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 1.4 * LAYERS**-0.5,
            "attention_multiplier": DIM**-0.5,
            "logits_scaling": 4.0,
        },
        {
            **USUAL,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 16,
            "tie_word_embeddings": False,
        },
        lambda tensors: tensors,
    ),
    "ChatGLMModel": (
        "Glm",
        {"head_dim": DIM, "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        {
            "padded_vocab_size": VOCAB,
            "hidden_size": SIZE,
            "ffn_hidden_size": 96,
            "num_layers": LAYERS,
            "num_attention_heads": HEADS,
            "multi_query_attention": True,
            "multi_query_group_num": KV_HEADS,
            "kv_channels": DIM,
            "layernorm_epsilon": 1.5625e-07,
            "add_qkv_bias": True,
            "rope_ratio": 0.05,
            "seq_length": LENGTH,
        },
        lambda tensors: chatglm(tensors) | {"transformer.vision.boi": torch.ones(3)},
    ),
}


def draw(count: int) -> list[int]:
    return [random.randrange(VOCAB) for _ in range(count)]


def compare(model, path: Path, stepper_class) -> None:
    """Compare logits of a prompt in two parts, beside another one."""
    stepper, text, other = stepper_class(path, LENGTH), draw(25), draw(9)
    first = stepper.step({0: text[:14]})[0]
    rest = stepper.step({0: text[14:], 1: other})
    for found, ids in ((torch.cat((first, rest[0])), text), (rest[1], other)):
        wanted = model.logits(ids)
        assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_same_model(name, stepper_class, tmp_path):
    check(name, FAMILIES[name], stepper_class, tmp_path)


def check(name: str, case: Family, stepper_class, tmp_path: Path) -> None:
    """Write a family's checkpoint as another one's, and compare both."""
    family, values, config, change = case
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    made = save_tiny(Variant(name, family, values), source, random.getrandbits(31))
    tensors = load_file(source / "model.safetensors")
    with torch.no_grad():
        for key, parameter in made.model.named_parameters():
            if "shared_expert_gate" in key or (family == "Qwen2Moe" and key.endswith("bias")):
                parameter.zero_()
    save_file({k: t.contiguous() for k, t in change(tensors).items()}, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
    compare(made, target, stepper_class)


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("MiniCPM", {"sparse_config": {"topk": 64}}, "attends to everything"),
    ],
)
def test_what_is_not_described_is_named(family, values, message, build_family):
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **{**USUAL, "moe_intermediate_size": 8, **values})


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("QWenLMHeadModel", {"seq_length": LENGTH // 2}, "up to seq_length; lower --max-model-len"),
        ("ChatGLMModel", {"rmsnorm": False}, "rmsnorm"),
    ],
)
def test_what_changes_the_shape_is_named(name, values, message, stepper_class, tmp_path):
    config = {**FAMILIES[name][2], **values, "architectures": [name]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)
