"""Checkpoints of MLX against transformers on the numbers that they stand for, and broken ones."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
import torch
import transformers
from tests.plugins.models.conftest import HERE
from tests.plugins.quantization.mlx_writer import affine, write_mlx
from torch import Tensor

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe.layers import Share, Storage
from hotshoe.slots import QuantSpec
from hotshoe_quantization.mlx import MlxFormat, read

OPTIONS = {"platform": HERE, "skip_tokenizer_init": True, "max_num_seqs": 2, "max_model_len": 64}
SIZES = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
FOUR = {"group_size": 32, "bits": 4, "mode": "affine"}
ROUTERS = {f"model.layers.{i}.mlp.gate": {"group_size": 64, "bits": 8} for i in range(2)}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "num_experts": 4,
    "shared_expert_intermediate_size": 32,
}
#: The family, what its configuration has beside SIZES, and MLX's description.
FAMILIES = {
    "llama-tied": ("Llama", {"tie_word_embeddings": True}, FOUR | {"mode": "affine"}),
    "qwen2-mixed": (
        "Qwen2",
        {},
        {"group_size": 32, "bits": 3}
        | {f"model.layers.{i}.self_attn.v_proj": FOUR | {"bits": 6} for i in range(2)}
        | {"model.layers.1.mlp.down_proj": False, "lm_head": {"group_size": 16, "bits": 8}},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}, {"group_size": 32, "bits": 5}),
    "gemma2": ("Gemma2", {"head_dim": 16, "tie_word_embeddings": True}, FOUR | {"bits": 2}),
    "gemma3": ("Gemma3", {"head_dim": 16, "tie_word_embeddings": True}, FOUR | {"bits": 6}),
    "qwen3-moe": (
        "Qwen3Moe",
        EXPERTS | {"num_experts": 4, "head_dim": 16, "mlp_only_layers": []},
        FOUR | ROUTERS,
    ),
    "gpt-oss": (
        "GptOss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
        {"group_size": 32, "bits": 4, "mode": "mxfp4", "lm_head": FOUR | {"bits": 8}},
    ),
    "qwen3-next": ("Qwen3Next", EXPERTS | DELTA, FOUR | ROUTERS),
    "qwen3.5": (
        "Qwen3_5Moe",
        EXPERTS | DELTA,
        FOUR | {f"language_model.{k}": v for k, v in ROUTERS.items()},
    ),
    "glm4-moe": (
        "Glm4Moe",
        LATENT | EXPERTS | {"num_key_value_heads": 2, "head_dim": 16},
        FOUR | {"bits": 8},
    ),
    "deepseek-v3": ("DeepseekV3", LATENT | EXPERTS | {"head_dim": 8}, FOUR),
    "qwen3-next-plain": ("Qwen3Next", EXPERTS | DELTA, {}),
    "gpt-oss-plain": (
        "GptOss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
        {},
    ),
    "mxfp8": ("Llama", {}, {"group_size": 32, "bits": 8, "mode": "mxfp8"}),
    "nvfp4": ("Llama", {}, {"group_size": 16, "bits": 4, "mode": "nvfp4"}),
}
CLASSES = {"Gemma3": "Gemma3TextConfig", "Qwen3_5Moe": "Qwen3_5MoeTextConfig"}
#: Of families that are published with parts that see: their whole model's class and type.
WHOLE = {"Qwen3_5Moe": ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe")}


def drawn(family: str, values: dict) -> transformers.PreTrainedModel:
    """Return a random model whose logits are far from uniform."""
    named = CLASSES.get(family, f"{family}Config")
    config = getattr(transformers, named)(**SIZES | values, attn_implementation="eager")
    seed = secrets.randbits(32)
    print(f"drawn from seed {seed}")
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0.0, 1.2 * weight.shape[-1] ** -0.5)
        else:
            weight.data.normal_(weight.data.mean(), 0.2)
    return model


def described(family: str, model: transformers.PreTrainedModel) -> dict:
    """Return what config.json has of a model."""
    values = model.config.to_dict()
    if family not in WHOLE:
        return values | {"architectures": [f"{family}ForCausalLM"]}
    named, kind = WHOLE[family]
    return {"architectures": [named], "model_type": kind, "text_config": values}


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    family, values, how = FAMILIES[name]
    model = drawn(family, values)
    write_mlx(model, tmp_path, described(family, model), how)
    tokens = torch.randint(SIZES["vocab_size"], (24,)).tolist()
    with torch.inference_mode():
        wanted = model(torch.tensor([tokens]), use_cache=False).logits[0].float().log_softmax(-1)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=20)
    with LLM(str(tmp_path), dtype="float32", **OPTIONS) as llm:
        [result] = llm.generate([TokensPrompt(tokens)], params)
    assert len(result.prompt_logprobs) == len(tokens)
    for at, found in enumerate(result.prompt_logprobs[1:]):
        ours = torch.tensor(found.logprobs)
        off = (ours - wanted[at, found.token_ids]).abs().max()
        assert off <= 2e-4, f"place {at}"


def test_plain_files_of_mlx_can_be_quantized(tmp_path: Path) -> None:
    family, values, _ = FAMILIES["qwen3-moe"]
    model = drawn(family, values)
    write_mlx(model, tmp_path, described(family, model), {})
    with LLM(str(tmp_path), dtype="float32", quantization="int8_weights", **OPTIONS) as llm:
        [result] = llm.generate([TokensPrompt([5, 3, 9])], SamplingParams(max_tokens=1))
    assert len(result.outputs[0].token_ids) == 1


LAYER = "model.layers.0.mlp.up_proj"


class Source(dict):
    """Tensors by name, as files have them."""

    def names(self) -> list[str]:
        return list(self)

    def tensor(self, name: str) -> Tensor:
        return self[name]

    def taken(self, name: str) -> None:
        self.pop(name)


def format_of(source: Source, **how: object) -> MlxFormat:
    """Return the format of a checkpoint whose one matrix [6, 64] a layer takes packed."""
    found = read(FOUR | how)
    found.survey(source.names())
    if found.storage(LAYER, (6, 64)):
        found.tensors(LAYER, (6, 64), Share((slice(0, 6),), slice(0, 64)))
    return found


def load(made: MlxFormat, source: Source) -> dict:
    """Return what kernels get."""
    decoded = made.decode(source)
    parts = {name.rpartition(".")[2]: [decoded.tensor(name)] for name in decoded.names()}
    return {name: one for name, [one] in made.canonical(LAYER, parts).items()}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [16, 32, 64])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_integers_stay_packed(bits: int, size: int, kind: torch.dtype) -> None:
    weight = torch.randn(6, 64)
    weight[2], weight[3, :size] = 0.07, 0.0  # groups of one number
    parts, dense = affine(weight, bits, size, kind)
    source = Source({f"{LAYER}.{name}": part for name, part in parts.items()})
    made = format_of(source, bits=bits, group_size=size)
    stored = made.storage(LAYER, (6, 64)).weight
    held = "int4" if bits <= 4 else "int8"
    assert (stored.format, stored.group_size, stored.symmetric) == (held, size, False)
    found = load(made, source)
    q, scale, zero = (found[f"weight{part}"].float() for part in ("", "_scale", "_zero_point"))
    assert zero.abs().max() < 1000
    dequantized = (q.unflatten(1, (-1, size)) - zero[..., None]) * scale[..., None]
    torch.testing.assert_close(dequantized.flatten(1), dense, rtol=1e-5, atol=1e-6)
    made.unpack(LAYER)
    plain = made.decode(source)
    assert list(plain.names()) == [f"{LAYER}.weight"]
    found = plain.tensor(f"{LAYER}.weight")
    torch.testing.assert_close(found, dense.to(kind), rtol=2**-7, atol=1e-6)
    plain.taken(f"{LAYER}.weight")
    assert not source


def test_matrices_of_other_bits_are_multiplied_together() -> None:
    names = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]
    made = read(FOUR | {names[2]: {"bits": 8, "group_size": 16}})
    made.join(names)
    forms = {made.storage(name, (64, 64)) for name in names}
    assert forms == {Storage(QuantSpec("int8", "group", 16, symmetric=False))}


BROKEN = {
    "no scales": ({"scales": lambda t: None}, {}, "holds packed numbers, but the checkpoint lacks"),
    "no biases": ({"biases": lambda t: None}, {}, r"lacks .*up_proj\.biases"),
    "no weight": ({"weight": lambda t: None}, {}, r"lacks .*up_proj\.weight"),
    "rows": ({"weight": lambda t: t[:5]}, {}, r"weight has shape \[5, 8\] beside scales \[6, 2\]"),
    "biases": ({"biases": lambda t: t[:, :1]}, {}, r"biases has shape \[6, 1\] beside scales"),
    "flat": ({"scales": lambda t: t.flatten()}, {}, "has shape .* beside scales"),
    "bits": ({}, {"bits": 8}, "which do not fit 8 bits and a group_size of 32"),
    "groups": ({}, {"group_size": 64}, "which do not fit 4 bits and a group_size of 64"),
    "type": ({"weight": lambda t: t.float()}, {}, "weight is of type torch.float32"),
    "whole scales": ({"scales": lambda t: t.int()}, {}, "scales is of type torch.int32"),
    "float scales": ({}, {"mode": "mxfp4"}, "scales is of type torch.float32"),
    "nan": ({"scales": lambda t: t * torch.nan}, {}, "up_proj.scales, .*holds NaN or infinity"),
    "infinite": ({"biases": lambda t: t / 0}, {}, "up_proj.biases, .*holds NaN or infinity"),
    "plain": ({}, {LAYER: False}, "has scales, but config.json means plain numbers"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_parts_are_named(name: str) -> None:
    spoil, how, words = BROKEN[name]
    parts, _ = affine(torch.randn(6, 64), 4, 32)
    parts = {part: spoil.get(part, lambda t: t)(tensor) for part, tensor in parts.items()}
    source = Source({f"{LAYER}.{n}": part for n, part in parts.items() if part is not None})
    with pytest.raises(CheckpointError, match=words):
        load(format_of(source, **how), source)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"bits": 7}, r"quantization\.bits is read as 2 or 3 or .* not 7"),
        ({"group_size": 48}, r"quantization\.group_size is read as 16 or 32"),
        ({"mode": "nf4"}, r"quantization\.mode is read as affine or mxfp4"),
        ({"mode": "nvfp4"}, r"quantization\.group_size is read as 16, not 32"),
        ({"lm_head": {"bits": 1}}, r"quantization\.lm_head\.bits is read as"),
    ],
)
def test_descriptions_that_are_not_read(how: dict, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(FOUR | how)


def test_groups_must_divide_inputs() -> None:
    with pytest.raises(CheckpointError, match="has 80 inputs, which the group_size 32"):
        read(FOUR).storage(LAYER, (6, 80))
