"""What config.json would hold of older decoders, from the metadata of their GGUF files.

Files have q, k and v in one matrix, all rows of q first, where checkpoints have them head by head.
Source: see `hybrids`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotshoe_models.gguf import dense, mixtures, spaces
from hotshoe_models.gguf.dense import Values
from hotshoe_models.gguf.family import Family, Rows
from hotshoe_models.gguf.hybrid_names import FALCON_H1_OUTER, JAMBA_NAMES
from hotshoe_models.gguf.hybrids import has
from hotshoe_models.gguf.metadata import Metadata
from hotshoe_models.gguf.names import (
    BITNET_NAMES,
    BLOOM_OUTER,
    CHATGLM_NAMES,
    DBRX_NAMES,
    FALCON_NAMES,
    FALCON_OUTER,
    FALCON_TWO_NORMS,
    GPT2_NAMES,
    GPT2_OUTER,
    HUNYUAN_NORMS,
    MPT_NAMES,
    MPT_OUTER,
    NAMES,
    NEOX_NAMES,
    NEOX_OUTER,
    QKV,
    ROUTED_NAMES,
    STARCODER2_NAMES,
)

if TYPE_CHECKING:
    from torch import Tensor

BLOCK, BLOCKS = "transformer.h.{}.", "transformer.blocks.{}."


def grouped(found: Tensor, values: Mapping[str, Any]) -> Tensor:
    """Return rows of q, k and v by heads of keys: queries of each, its key and its value."""
    heads, kv = values["num_attention_heads"], values["num_key_value_heads"]
    size, rest = divmod(len(found), heads + 2 * kv)
    if rest or heads % kv:
        return found  # whose shape is refused where it is taken
    queries, row = heads // kv, found.shape[1:]
    made = found.new_empty(kv, queries + 2, size, *row)
    q, k, v = found.split([heads * size, kv * size, kv * size])
    made[:, :queries] = q.reshape(kv, queries, size, *row)
    made[:, queries], made[:, queries + 1] = k.reshape(kv, size, *row), v.reshape(kv, size, *row)
    return made.reshape(found.shape)


def sizes(meta: Metadata) -> list[Rows]:
    """Return the rows of each layer's q, k and v, which have heads of one size."""
    heads, head_dim = meta.integer("attention.head_count"), dense.head_size(meta)
    kv = meta.integer("attention.head_count_kv", heads)
    return [(heads * head_dim, kv * head_dim, kv * head_dim)] * meta.integer("block_count")


def gpt_keys(meta: Metadata) -> Values:
    """Return sizes by GPT-2's names for them."""
    return {
        "n_embd": meta.integer("embedding_length"),
        "n_layer": meta.integer("block_count"),
        "n_head": meta.integer("attention.head_count"),
        "n_inner": meta.integer("feed_forward_length"),
        "n_positions": meta.integer("context_length"),
    }


def gpt2(meta: Metadata) -> Values:
    """GPT-2's matrices are not transposed in files, as those of its successor are not."""
    return {**gpt_keys(meta), "multi_query": False, "grouped_qkv": False}


def starcoder(meta: Metadata) -> Values:
    """Return keys of StarCoder, whose heads share one key.

    Raises:
        CheckpointError: They do not.
    """
    if meta.integer("attention.head_count_kv") != 1:
        raise meta.refuse("starcoder.attention.head_count_kv", "but must be 1")
    return {**gpt_keys(meta), "multi_query": True}


def gptneox(meta: Metadata) -> Values:
    parallel = meta.flag("gptneox.use_parallel_residual", True)
    return {**dense.rotated_in_part(meta), "use_parallel_residual": parallel}


def falcon(meta: Metadata) -> Values:
    kv, two = meta.integer("attention.head_count_kv", 1), has(meta, "attn_norm_2.weight")
    return {
        "num_key_value_heads": kv,
        "num_kv_heads": kv,
        "new_decoder_architecture": kv > 1 or two,
        "num_ln_in_parallel_attn": 1 + two,
        "ffn_hidden_size": meta.integer("feed_forward_length"),
        "bias": has(meta, "attn_qkv.bias"),
    }


def mpt(meta: Metadata) -> Values:
    """Return keys of MPT.

    Raises:
        CheckpointError: A key is missing or malformed, or heads share keys.
    """
    size, heads = meta.integer("embedding_length"), meta.integer("attention.head_count")
    for key, wanted in (("attention.head_count_kv", heads), ("feed_forward_length", 4 * size)):
        if meta.integer(key, wanted) != wanted:
            raise meta.refuse(f"mpt.{key}", f"but is read as {wanted}")
    bias = meta.number("attention.max_alibi_bias", 0.0)
    limit = meta.number("attention.clamp_kqv", 0.0)
    return {
        "d_model": size,
        "n_heads": heads,
        "n_layers": meta.integer("block_count"),
        "max_seq_len": meta.integer("context_length"),
        "attn_config": {"alibi": bias > 0, "alibi_bias_max": bias, "clip_qkv": limit or None},
    }


def qwen(meta: Metadata) -> Values:
    """Files tell the channels of gates and ups together."""
    return {"intermediate_size": meta.shape("blk.0.ffn_up.weight")[0]}


def maincoder(meta: Metadata) -> Values:
    """Heads are normed where they have turned, as Hunyuan's are, and neighbors turn together."""
    return {"rope_interleave": True}


def codeshell(meta: Metadata) -> Values:
    return {"use_bias": has(meta, "attn_qkv.bias")}


def deepseek(meta: Metadata) -> Values:
    """Return keys of DeepSeek's and Ling's first mixtures."""
    return mixtures.routed(meta, mixtures.SOFTMAX)


def dbrx(meta: Metadata) -> Values:
    found = mixtures.experts(meta)
    kv = meta.integer("attention.head_count_kv")
    return {
        "d_model": meta.integer("embedding_length"),
        "n_heads": meta.integer("attention.head_count"),
        "n_layers": meta.integer("block_count"),
        "max_seq_len": meta.integer("context_length"),
        "attn_config": {
            "kv_n_heads": kv,
            "clip_qkv": meta.number("attention.clamp_kqv", 0.0) or None,
        },
        "ffn_config": {
            "ffn_hidden_size": meta.integer("feed_forward_length"),
            "moe_num_experts": found["num_experts"],
            "moe_top_k": found["num_experts_per_tok"],
        },
    }


def bitnet(meta: Metadata) -> Values:
    """Return the activation, which files leave out."""
    return {"hidden_act": "silu"}


def jamba(meta: Metadata) -> Values:
    """Layers without heads of keys and values have Mamba's blocks; some have experts."""
    layers = meta.integer("block_count")
    attends = [heads > 0 for heads in meta.sizes("attention.head_count_kv")]
    sparse = [f"blk.{i}.ffn_gate_inp.weight" in meta.tensors for i in range(layers)]
    count = meta.integer("expert_count", 0)
    experts = mixtures.experts(meta) if count > 1 else {"num_experts": 1}
    inner = spaces.expansion(meta)
    return {
        **experts,
        **_every(meta, "attn_layer", attends),
        **(_every(meta, "expert_layer", sparse) if count > 1 else {}),
        "mamba_d_state": meta.integer("ssm.state_size"),
        "mamba_d_conv": meta.integer("ssm.conv_kernel"),
        "mamba_expand": inner,
        "mamba_dt_rank": meta.integer("ssm.time_step_rank"),
        "mamba_conv_bias": has(meta, "ssm_conv1d.bias"),
        "mamba_proj_bias": has(meta, "ssm_in.bias"),
    }


def _every(meta: Metadata, kind: str, chosen: list[bool]) -> Values:
    """Return how often layers of a kind come, and which is the first.

    Raises:
        CheckpointError: They do not come at equal distances.
    """
    count = len(chosen)
    first = chosen.index(True) if any(chosen) else count
    next_one = chosen.index(True, first + 1) if sum(chosen) > 1 else first + count
    period = max(next_one - first, first + 1)
    if chosen != [i >= first and (i - first) % period == 0 for i in range(count)]:
        raise meta.refuse("general.architecture", f"but its {kind}s do not come at equal distances")
    return {f"{kind}_period": period, f"{kind}_offset": first}


_GROUPED = {"query_key_value": grouped}
_JAMBA: dict[str, Any] = {
    "outer": FALCON_H1_OUTER,
    "mixed": True,
    "turns": {".A_log": spaces.MAMBA_TURNS[".A_log"], ".conv1d.weight": spaces.filters},
}
FAMILIES = {
    "bitnet": Family("BitNetForCausalLM", bitnet, BITNET_NAMES),
    "bloom": Family(
        "BloomForCausalLM", names=FALCON_NAMES, outer=BLOOM_OUTER, layer=BLOCK, turns=_GROUPED
    ),
    "chatglm": Family("GlmForCausalLM", dense.rotated_in_part, CHATGLM_NAMES, parted=sizes),
    "codeshell": Family(
        "Starcoder2ForCausalLM", codeshell, {**STARCODER2_NAMES, **QKV}, parted=sizes
    ),
    "falcon": Family(
        "FalconForCausalLM",
        falcon,
        FALCON_NAMES,
        outer=FALCON_OUTER,
        layer=BLOCK,
        turns=_GROUPED,
        instead={"attn_norm_2.weight": FALCON_TWO_NORMS},
    ),
    "gpt2": Family(
        "GPTBigCodeForCausalLM",
        gpt2,
        GPT2_NAMES,
        outer=GPT2_OUTER,
        layer=BLOCK,
    ),
    "gptneox": Family(
        "GPTNeoXForCausalLM",
        gptneox,
        NEOX_NAMES,
        outer=NEOX_OUTER,
        layer="gpt_neox.layers.{}.",
        turns=_GROUPED,
    ),
    "jais2": Family("Jais2ForCausalLM"),
    "jamba": Family("JambaForCausalLM", jamba, JAMBA_NAMES, **_JAMBA),
    "maincoder": Family("HunYuanDenseV1ForCausalLM", maincoder, {**NAMES, **HUNYUAN_NORMS}),
    "mpt": Family("MPTForCausalLM", mpt, MPT_NAMES, outer=MPT_OUTER, layer=BLOCKS),
    "orion": Family("OrionForCausalLM"),
    "qwen": Family("Qwen2ForCausalLM", qwen, {**NAMES, **QKV}, parted=sizes),
    "starcoder": Family(
        "GPTBigCodeForCausalLM", starcoder, GPT2_NAMES, outer=GPT2_OUTER, layer=BLOCK
    ),
}
MIXTURES = {
    "bailingmoe": Family("DeepseekForCausalLM", deepseek, ROUTED_NAMES, pairs=True),
    "dbrx": Family("DbrxForCausalLM", dbrx, DBRX_NAMES, outer=MPT_OUTER, layer=BLOCKS),
    "deepseek": Family("DeepseekForCausalLM", deepseek, ROUTED_NAMES, pairs=True),
    "jamba": FAMILIES["jamba"],
}
