"""Writes tiny GGUF files with the writer of the gguf package, from checkpoints of transformers."""

import math
import struct
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

#: Names of architectures in files, by the family's name in transformers.
ARCHS = {"Llama": "llama", "Mistral": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3", "Phi3": "phi3"}
ARCHS |= {"Gemma2": "gemma2", "Gemma3": "gemma3", "Granite": "granite", "SmolLM3": "smollm3"}
ARCHS |= {"Mixtral": "llama", "Qwen2Moe": "qwen2moe", "Qwen3Moe": "qwen3moe", "Olmoe": "olmoe"}
ARCHS |= {"GraniteMoe": "granitemoe", "GraniteMoeShared": "granitemoe", "GptOss": "gpt-oss"}
ARCHS |= {"Glm4Moe": "glm4moe", "Dots1": "dots1", "Ernie4_5_Moe": "ernie4_5-moe"}
ARCHS |= {"DeepseekV2": "deepseek2", "DeepseekV3": "deepseek2"}
ARCHS |= {"Llama4": "llama4"}
ARCHS |= {"MiniMaxM2": "minimax-m2", "HunYuanMoEV1": "hunyuan-moe"}
ARCHS |= {"Arcee": "arcee", "Cohere": "command-r", "Cohere2": "cohere2", "Ernie4_5": "ernie4_5"}
ARCHS |= {"Exaone4": "exaone4", "Gemma": "gemma", "Glm4": "glm4", "Nemotron": "nemotron"}
ARCHS |= {"HunYuanDenseV1": "hunyuan-dense", "Ministral3": "mistral3", "SeedOss": "seed_oss"}
ARCHS |= {"Olmo2": "olmo2", "Olmo3": "olmo2", "StableLm": "stablelm", "Starcoder2": "starcoder2"}
ARCHS |= {"Apertus": "apertus", "Phi": "phi2", "Phimoe": "phimoe", "Afmoe": "afmoe"}
ARCHS |= {"ExaoneMoe": "exaone-moe"}
#: What the writer's package calls architectures, where it is not the name in files.
CONSTANTS = {"granitemoe": "GRANITE_MOE", "gpt-oss": "GPT_OSS", "glm4moe": "GLM4_MOE"}
CONSTANTS |= {"ernie4_5-moe": "ERNIE4_5_MOE", "minimax-m2": "MINIMAXM2"}
CONSTANTS |= {"hunyuan-moe": "HUNYUAN_MOE", "hunyuan-dense": "HUNYUAN_DENSE"}
CONSTANTS |= {"pangu-embedded": "PANGU_EMBED"}
CONSTANTS |= {"command-r": "COMMAND_R", "exaone-moe": "EXAONE_MOE"}
#: Keys of experts, by those of configurations in transformers.
EXPERT_KEYS = {
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "n_routed_experts": "expert_count",
    "moe_num_experts": "expert_count",
    "moe_k": "expert_used_count",
    "moe_topk": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "num_shared_experts": "expert_shared_count",
    "num_dense_layers": "leading_dense_block_count",
    "moe_num_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
#: Models whose keys and values of latents are two matrices in files.
HALVED = ("deepseek_v3", "deepseek_v32", "youtu", "glm_moe_dsa", "kimi_linear", "mistral4")
#: Families whose converters let neighboring rows of q and k rotate together.
PAIRED = ("llama", "granite", "granitemoe", "smollm3", "arcee", "internlm2", "minicpm", "mistral3")
PAIRED += ("xverse",)
#: Families whose converters add 1 to weights of norms.
OFFSET = ("Gemma", "Nemotron")
#: What configurations call the smallest variance of norms with a mean.
EPSILONS = ("layer_norm_eps", "norm_eps", "norm_epsilon")
BYTES = [*map(chr, [*range(33, 127), *range(161, 173), *range(174, 256)])]
BYTES += [chr(256 + i) for i in range(256 - len(BYTES))]


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Bring row i and row i + d / 2 of each head together."""
    size = rows.shape[0] // heads
    order = [
        h * size + i + half
        for h in range(heads)
        for i in range(size // 2)
        for half in (0, size // 2)
    ]
    return rows[order]


def dense_of(arch: str, config: Any, rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of norms, windows and scores of dense models."""
    if rms := getattr(config, "rms_norm_eps", None):
        found: dict[str, Any] = {"attention.layer_norm_rms_epsilon": float(rms)}
    else:
        [eps] = [getattr(config, name) for name in EPSILONS if hasattr(config, name)]
        found = {"attention.layer_norm_epsilon": float(eps)}
    if arch in ("exaone4", "exaone-moe", "olmo2") and getattr(config, "sliding_window", None):
        kinds = [kind == "sliding_attention" for kind in config.layer_types]
        found["attention.sliding_window_pattern"] = kinds
    if arch == "mistral3" and rope["rope_type"] == "yarn":
        found["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
        found["attention.temperature_scale"] = float(rope["llama_4_scaling_beta"])
    if arch in ("command-r", "cohere2"):
        found["logit_scale"] = config.logit_scale
    if arch in ("gemma2", "gemma3"):
        found["attention.scale"] = config.query_pre_attn_scalar**-0.5
    return found


def values_of(arch: str, config: Any) -> dict[str, Any]:
    """Return the metadata that a converter would write, by keys without the architecture."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    rope = config.rope_parameters
    found = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }
    if "full_attention" in rope and arch != "gemma3":
        rope = rope["full_attention"]
    found |= dense_of(arch, config, rope)
    if arch == "gemma3":
        found["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
        kinds = [kind == "sliding_attention" for kind in config.layer_types]
        found["attention.sliding_window_pattern"] = kinds
    found["rope.freq_base"] = float(rope["rope_theta"])
    found["rope.dimension_count"] = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    if rope["rope_type"] in ("linear", "yarn"):
        found["rope.scaling.type"] = rope["rope_type"]
        found["rope.scaling.factor"] = float(rope["factor"])
    if "original_max_position_embeddings" in rope and rope["rope_type"] != "llama3":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if getattr(config, "sliding_window", None):
        found["attention.sliding_window"] = config.sliding_window
    found |= {own: n for key, own in EXPERT_KEYS.items() if (n := getattr(config, key, 0))}
    found |= experts_of(arch, config)
    if arch.startswith("granite") or arch == "minicpm":
        found |= {} if arch == "minicpm" else {"attention.scale": config.attention_multiplier}
        found["embedding_scale"] = config.embedding_multiplier
        found["residual_scale"] = config.residual_multiplier
        found["logit_scale"] = config.logits_scaling
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, key, None):
            found[key] = getattr(config, key)
    return found


def experts_of(arch: str, config: Any) -> dict[str, Any]:
    """Return what files say of routers, of the sizes of experts, and of latents."""
    found: dict[str, Any] = {}
    if arch in ("glm4moe", "dots1", "deepseek2", "exaone-moe", "bailingmoe2"):
        found["expert_weights_norm"] = bool(getattr(config, "norm_topk_prob", False))
        found["expert_weights_scale"] = float(config.routed_scaling_factor)
        found["expert_gating_func"] = 2
    if arch == "afmoe":
        found["expert_weights_norm"] = True
        found["expert_weights_scale"] = float(config.route_scale)
    if arch == "deepseek2":
        found |= latents_of(config)
    if arch in ("gpt-oss", "llama4", "minimax-m2", "hunyuan-moe"):
        found["expert_feed_forward_length"] = config.intermediate_size
        dense = getattr(config, "intermediate_size_mlp", config.intermediate_size)
        found["feed_forward_length"] = dense
    return found


def latents_of(config: Any) -> dict[str, Any]:
    """Return what files say of latent attention: those of version 2 here as older ones do."""
    rope_dim, latent = config.qk_rope_head_dim, config.kv_lora_rank
    keys, values = config.qk_nope_head_dim + rope_dim, config.v_head_dim
    found = {"attention.kv_lora_rank": latent, "rope.dimension_count": rope_dim}
    if config.q_lora_rank:
        found["attention.q_lora_rank"] = config.q_lora_rank
    rope = getattr(config, "rope_parameters", None) or {}
    if temperature := rope.get("mscale_all_dim"):
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * temperature
    if config.model_type == "deepseek_v2":
        sizes = {"attention.key_length": keys, "attention.value_length": values}
        return found | sizes | {"expert_gating_func": 1}
    found |= {"attention.key_length_mla": keys, "attention.value_length_mla": values}
    sizes = {"attention.key_length": latent + rope_dim, "attention.value_length": latent}
    return found | sizes | {"attention.head_count_kv": 1}


def halves(name: str, tensor: np.ndarray, config: Any) -> list[tuple[str, np.ndarray]]:
    """Take keys and values of latents apart, as newer converters do."""
    if config.model_type not in HALVED or "kv_b_proj" not in name:
        return [(name, tensor)]
    heads = tensor.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    keys, values = np.split(heads, [config.qk_nope_head_dim], axis=1)
    return [
        (name.replace("kv_b", "k_b"), keys.swapaxes(1, 2)),
        (name.replace("kv_b", "v_b"), values),
    ]


def factors_of(config: Any) -> dict[str, np.ndarray]:
    """Return the rotary factors that files hold as tensors."""
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32)
            for kind in ("long", "short")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    pairs = scaled.shape[0]
    plain = [rope["rope_theta"] ** (-i / pairs) for i in range(pairs)]
    return {"rope_freqs.weight": (torch.tensor(plain) / scaled).numpy()}


def vocabulary(size: int) -> dict[str, Any]:
    """Return metadata of a byte-level vocabulary: control tokens, pairs, single bytes."""
    pairs = [f"{a} {b}" for a in "abc" for b in "ijk"]
    tokens = ["<pad>", "<s>", "</s>", *(pair.replace(" ", "") for pair in pairs), *BYTES]
    tokens = tokens[:size] + [f"<unused{i}>" for i in range(size - len(tokens))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (size - 3),
        "tokenizer.ggml.merges": pairs,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}",
    }


ADD = {bool: "add_bool", int: "add_uint32", float: "add_float32", str: "add_string"}


def write(
    path: Path,
    arch: str,
    values: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    kind: Callable[[str], str] = lambda name: "F32",
    **options: Any,
) -> Path:
    """Write a file; `values` are whole keys, and `kind` names the type of each tensor."""
    writer = gguf.GGUFWriter(path, arch, **options)
    for key, value in values.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            getattr(writer, ADD[type(value)])(key, value)
    for name, tensor in tensors.items():
        known = gguf.GGMLQuantizationType[kind(name)]
        writer.add_tensor(name, gguf.quants.quantize(tensor, known), raw_dtype=known)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def export(
    checkpoint: Any, family: str, path: Path, kind: Callable[[str], str], arch: str = ""
) -> Path:
    """Write a checkpoint of transformers as a converter would, its matrices in a type.

    Args:
        arch: Whose files look like those of another architecture.
    """
    arch, model = arch or ARCHS[family], checkpoint.model
    config = model.config
    known = gguf.MODEL_ARCH[CONSTANTS.get(arch, arch.upper())]
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    values = {f"{arch}.{key}": v for key, v in values_of(arch, config).items()}
    values |= vocabulary(config.vocab_size)
    state = model.state_dict()
    for part in ("alpha_n", "alpha_p", "beta", "eps"):
        listed = [value.item() for name, value in state.items() if f"act_fn.{part}" in name]
        values |= {f"xielu.{part}": listed} if listed else {}
    if arch == "bailingmoe2":
        state = fused(state)
    tensors = dict(factors_of(config))
    for name, tensor in state.items():
        if "act_fn" in name or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        found = tensor.float().numpy()
        for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            if arch in PAIRED and f"{part}_proj" in name:
                found = paired(found, heads)
        if family.startswith(OFFSET) and name.endswith("norm.weight"):
            found = found + 1
        parts = halves(name, found, config) if arch == "deepseek2" else [(name, found)]
        for part, values_of_part in chain.from_iterable(parts_of(*p, family) for p in parts):
            called = names.get_name(part, try_suffixes=(".weight", ".bias"))
            tensors[called] = np.ascontiguousarray(values_of_part)
    return write(path, arch, values, tensors, kind)


def fused(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put q, k and v into one matrix each, and call norms of heads as Ling does."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        prefix, _, kind = name.partition("q_proj.")
        if kind:
            rows = [state[f"{prefix}{part}_proj.{kind}"] for part in "qkv"]
            found[f"{prefix.replace('self_attn', 'attention')}query_key_value.{kind}"] = torch.cat(
                rows
            )
        elif "k_proj" not in name and "v_proj" not in name:
            found[name] = tensor
    return found


def parts_of(name: str, tensor: np.ndarray, family: str) -> list[tuple[str, np.ndarray]]:
    """Take gates and ups apart, as converters do, under names that the writer's package knows."""
    name = name.replace("block_sparse_moe.router", "block_sparse_moe.router.layer")
    name = name.replace("block_sparse_moe.experts", "mlp.experts")
    name = name.replace("mlp.expert_bias", "mlp.expert_bias.bias")
    name = name.replace("sinks", "sinks.weight").replace("gate.moe_statics", "moe_statics")
    if "e_score_correction_bias" in name:
        outer = {"MiniMaxM2": "block_sparse_moe"}.get(family, "mlp")
        name = name.replace("_bias", ".bias").replace("mlp", outer)
        tensor = tensor.squeeze()
    prefix, joined, kind = name.partition("gate_up_proj")
    if "shared_mlp.input_linear" in name:
        both = np.split(tensor, 2)
        prefix = name.partition("shared_mlp")[0] + "mlp.shared_expert."
        return list(zip((f"{prefix}{p}_proj.weight" for p in ("gate", "up")), both, strict=True))
    if "experts." not in name or "shared" in name:
        return [(name, tensor)]
    if not joined:
        prefix, _, kind = name.partition("down_proj")
    last = ".bias" if kind else ".weight"
    turned = family in ("GptOss", "Llama4") and not kind
    rows = tensor.swapaxes(1, 2) if turned else tensor
    if not joined:
        return [(f"{prefix}down_proj{last}", rows)]
    both = (rows[:, ::2], rows[:, 1::2]) if family == "GptOss" else np.split(rows, 2, axis=1)
    return [(f"{prefix}gate_proj{last}", both[0]), (f"{prefix}up_proj{last}", both[1])]


def of_matrices(kind: str) -> Callable[[str], str]:
    """Give matrices a type, and leave the rest in F32."""

    def choose(name: str) -> str:
        single = "norm" in name or name.endswith(".bias") or name.startswith("rope_")
        return "F32" if single or "ffn_gate_inp" in name or "sinks" in name else kind

    return choose


def raw_file(
    keys: bytes = b"", infos: bytes = b"", data: bytes = b"", counts: tuple[int, int] = (0, 0)
) -> bytes:
    """Put a file together from parts that are already encoded."""
    head = b"GGUF" + struct.pack("<IQQ", 3, counts[1], counts[0]) + keys + infos
    return head + bytes(-len(head) % 32) + data


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def info(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def size_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape) * 4


def tiny_model() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return metadata and tensors of a llama of one layer with random weights."""
    hidden, vocab = 32, 300
    rng = np.random.default_rng()
    matrices = {
        "token_embd": (vocab, hidden),
        **{f"blk.0.attn_{part}": (hidden, hidden) for part in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{part}": (64, hidden) for part in ("gate", "up")},
        "blk.0.ffn_down": (hidden, 64),
    }
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    tensors = {
        **{f"{n}.weight": rng.normal(0, 0.3, shape) for n, shape in matrices.items()},
        **{f"{n}.weight": np.ones(hidden) for n in norms},
    }
    values = {
        "llama.context_length": 64,
        "llama.embedding_length": hidden,
        "llama.block_count": 1,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **vocabulary(vocab),
    }
    tensors = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    return values, tensors


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A file of `tiny_model`."""
    return write(tmp_path / "tiny-F32.gguf", "llama", *tiny_model())
