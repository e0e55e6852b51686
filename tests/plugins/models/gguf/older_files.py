"""Writes tiny GGUF files of older decoders as converters do: their keys, and changes of tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tests.plugins.models.gguf.conftest import paired, parts_of, vocabulary, write
from tests.plugins.models.gguf.hybrid_files import Parts, common

#: Names of architectures in files, by the family's name in transformers.
ARCHS = {
    "BitNet": "bitnet",
    "Bloom": "bloom",
    "Dbrx": "dbrx",
    "Falcon": "falcon",
    "GPT2": "gpt2",
    "GPTBigCode": "starcoder",
    "GPTNeoX": "gptneox",
    "Glm": "chatglm",
    "Jais2": "jais2",
    "Jamba": "jamba",
    "Mpt": "mpt",
}
#: Those whose files have q, k and v in one matrix, one after the other, where checkpoints do not.
JOINED = ("chatglm", "codeshell", "phi2", "qwen")
#: Those with norms that take off a mean.
WITH_MEAN = ("bloom", "codeshell", "dbrx", "falcon", "gpt2", "gptneox", "jais2", "mpt", "orion")
WITH_MEAN += ("phi2", "starcoder")
EPSILONS = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "rms_norm_eps")


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def gpt_keys(config: Any) -> dict[str, Any]:
    return {
        "feed_forward_length": config.n_inner or 4 * config.n_embd,
        "attention.head_count_kv": 1 if getattr(config, "multi_query", False) else None,
    }


def neox_keys(config: Any) -> dict[str, Any]:
    return {
        **glm_keys(config),
        "attention.head_count_kv": None,
        "use_parallel_residual": config.use_parallel_residual,
    }


def falcon_keys(config: Any) -> dict[str, Any]:
    kv = config.num_kv_heads if config.new_decoder_architecture else 1
    return {"attention.head_count_kv": kv, "feed_forward_length": config.ffn_hidden_size}


def bloom_keys(config: Any) -> dict[str, Any]:
    heads, size = config.num_attention_heads, config.hidden_size
    return {"attention.head_count_kv": heads, "feed_forward_length": 4 * size}


def mpt_keys(config: Any) -> dict[str, Any]:
    attention = config.attn_config
    return {
        "attention.head_count_kv": None,
        "feed_forward_length": 4 * config.hidden_size,
        "attention.clamp_kqv": attention.clip_qkv,
        "attention.max_alibi_bias": float(attention.alibi_bias_max),
    }


def dbrx_keys(config: Any) -> dict[str, Any]:
    return {
        "attention.head_count_kv": config.attn_config.kv_n_heads,
        "attention.clamp_kqv": float(config.attn_config.clip_qkv),
        "attention.layer_norm_epsilon": 1e-5,
        "context_length": config.max_seq_len,
        "expert_count": config.ffn_config.moe_num_experts,
        "expert_used_count": config.ffn_config.moe_top_k,
        "feed_forward_length": config.ffn_config.ffn_hidden_size,
    }


def glm_keys(config: Any) -> dict[str, Any]:
    part = config.rope_parameters["partial_rotary_factor"]
    return {"rope.dimension_count": int(head_dim(config) * part)}


def qwen_keys(config: Any) -> dict[str, Any]:
    return {"feed_forward_length": 2 * config.intermediate_size, "attention.head_count_kv": None}


def jamba_keys(config: Any) -> dict[str, Any]:
    attends = [kind == "full_attention" for kind in config.layer_types]
    return {
        "attention.head_count_kv": [config.num_key_value_heads * attend for attend in attends],
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "ssm.state_size": config.mamba_d_state,
        "ssm.time_step_rank": config.mamba_dt_rank,
    }


def deepseek_keys(config: Any) -> dict[str, Any]:
    return {
        "expert_shared_count": 2,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": config.norm_topk_prob or None,
        "leading_dense_block_count": 1,
        "rope.dimension_count": head_dim(config),
    }


def transposed(name: str, found: np.ndarray, config: Any) -> Parts:
    return [(name, found.T if found.ndim == 2 and ".h." in name else found)]


def ungrouped(name: str, found: np.ndarray, config: Any) -> Parts:
    """Put all rows of q first, then those of k and of v."""
    if "query_key_value" in name:
        heads, kv = config.num_attention_heads, config.num_attention_heads
        if config.model_type == "falcon":
            kv = falcon_keys(config)["attention.head_count_kv"]
        size, queries = len(found) // (heads + 2 * kv), heads // kv
        each = found.reshape(kv, queries + 2, size, *found.shape[1:])
        parts = (each[:, :queries], each[:, queries], each[:, queries + 1])
        found = np.concatenate([part.reshape(-1, *found.shape[1:]) for part in parts])
    if config.model_type == "bloom":
        name = name.removeprefix("transformer.")
    return [(name, found)]


def bitnet(name: str, found: np.ndarray, config: Any) -> Parts:
    """Call norms as the first models do, which the writer's package knows."""
    name = name.replace("attn_sub_norm", "inner_attn_ln").replace("ffn_sub_norm", "ffn_layernorm")
    return [(name, found)]


def dbrx(name: str, found: np.ndarray, config: Any) -> Parts:
    if ".experts.mlp." in name:
        found = found.reshape(config.ffn_config.moe_num_experts, -1, config.hidden_size)
        return [(f"{name}.weight", found.swapaxes(1, 2) if name.endswith("w2") else found)]
    return [(name, found)]


def jamba(name: str, found: np.ndarray, config: Any) -> Parts:
    if name.endswith("A_log"):
        found = -np.exp(found)
    if "conv1d.weight" in name:
        found = found[:, 0]
    name = name.replace("feed_forward.experts", "mlp.experts")
    return parts_of(name, found, "Jamba")


def llama(name: str, found: np.ndarray, config: Any) -> Parts:
    for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
        if f"{part}_proj" in name:
            found = paired(found, heads)
    return [(name, found)]


def maincoder(name: str, found: np.ndarray, config: Any) -> Parts:
    name = name.replace("query_layernorm", "q_norm").replace("key_layernorm", "k_norm")
    return (
        [(name, paired(found, 1))]
        if "_norm" in name and "attn" in name
        else llama(name, found, config)
    )


def deepseek(name: str, found: np.ndarray, config: Any) -> Parts:
    """Take Qwen 2's shared experts, whose gates are half open, for ones without a gate."""
    if "shared_expert_gate" in name or name.endswith("_proj.bias"):
        assert not found.any()
        return []
    if "shared_expert.down_proj" in name:
        found = found / 2
    name = name.replace("shared_expert.", "shared_experts.")
    return [p for part in llama(name, found, config) for p in parts_of(*part, "Qwen2Moe")]


KEYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "bailingmoe": deepseek_keys,
    "bloom": bloom_keys,
    "chatglm": glm_keys,
    "dbrx": dbrx_keys,
    "deepseek": deepseek_keys,
    "falcon": falcon_keys,
    "gpt2": gpt_keys,
    "gptneox": neox_keys,
    "jamba": jamba_keys,
    "mpt": mpt_keys,
    "phi2": glm_keys,
    "qwen": qwen_keys,
    "starcoder": gpt_keys,
}
CHANGES: dict[str, Callable[[str, np.ndarray, Any], Parts]] = {
    "baichuan": llama,
    "bailingmoe": deepseek,
    "bitnet": bitnet,
    "bloom": ungrouped,
    "dbrx": dbrx,
    "deepseek": deepseek,
    "falcon": ungrouped,
    "gpt2": transposed,
    "maincoder": maincoder,
    "gptneox": ungrouped,
    "jamba": jamba,
}


def joined(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Put q, k and v of each layer into one matrix."""
    found: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        prefix, q, kind = name.partition("attn_q.")
        if q:
            rows = [tensors[f"{prefix}attn_{part}.{kind}"] for part in "qkv"]
            found[f"{prefix}attn_qkv.{kind}"] = np.concatenate(rows)
        elif "attn_k." not in name and "attn_v." not in name:
            found[name] = tensor
    return found


def export(
    checkpoint: Any, family: str, path: Path, kind: Callable[[str], str], arch: str = ""
) -> Path:
    """Write a checkpoint of transformers as a converter would, its matrices in a type."""
    model, arch = checkpoint.model, arch or ARCHS[family]
    config = model.config
    if arch in ("deepseek", "bailingmoe"):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "shared_expert_gate" in name or name.endswith("_proj.bias"):
                    weight.zero_()
    values = common(config)
    values.pop("attention.layer_norm_rms_epsilon", None)
    norm = (
        "attention.layer_norm_epsilon" if arch in WITH_MEAN else "attention.layer_norm_rms_epsilon"
    )
    for key in EPSILONS:
        if hasattr(config, key):
            values[norm] = float(getattr(config, key))
    values |= KEYS.get(arch, lambda config: {})(config)
    keys = {f"{arch}.{key}": value for key, value in values.items() if value is not None}
    known = (gguf.MODEL_ARCH[name] for name in (arch.upper(), "STARCODER2", "DEEPSEEK"))
    maps = [gguf.get_tensor_name_map(each, config.num_hidden_layers) for each in known]
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in model.state_dict().items():
        if name in ("lm_head.weight", "embed_out.weight") and config.tie_word_embeddings:
            continue
        change = CHANGES.get(arch, lambda name, found, config: [(name, found)])
        for part, found in change(name, tensor.float().numpy(), config):
            called = (names.get_name(part, try_suffixes=(".weight", ".bias")) for names in maps)
            tensors[next(filter(None, called))] = np.ascontiguousarray(found)

    def choose(name: str) -> str:
        return "F32" if "ssm_" in name and "ssm_in" not in name else kind(name)

    tensors = joined(tensors) if arch in JOINED else tensors
    return write(path, arch, keys | vocabulary(config.vocab_size), tensors, choose)
