"""What GGUF files call the architectures of this distribution: configuration and tensors, as data.

A `Family` turns a file's metadata into the values that config.json would have, and tensor names
into those of the original checkpoint.
Source: the key and tensor names of ggml's gguf.md; the keys of transformers' configurations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotshoe_models.gguf import (
    dense,
    encoders,
    gemmas,
    hybrids,
    mixtures,
    older,
    published,
    spaces,
    uneven,
)
from hotshoe_models.gguf.dense import Values, rotation_of
from hotshoe_models.gguf.family import Family
from hotshoe_models.gguf.hybrid_names import (
    FALCON_H1_NAMES,
    GEMMA3N_NAMES,
    GEMMA4_NAMES,
    GRANITE_HYBRID_NAMES,
    KIMI_LINEAR_NAMES,
    LFM2_NAMES,
    MAMBA2_NAMES,
    MAMBA_NAMES,
    NEMOTRON_H_NAMES,
    QWEN35_NAMES,
    QWEN_FURTHER_NAMES,
    QWEN_NEXT_NAMES,
)
from hotshoe_models.gguf.metadata import MAX_LAYERS, Metadata
from hotshoe_models.gguf.names import (
    AFMOE_NAMES,
    APERTUS_NAMES,
    DEEPSEEK_NAMES,
    ERNIE_NAMES,
    EXAONE_MOE_NAMES,
    GEMMA_NAMES,
    GLM4_NAMES,
    GLM_DSA_NAMES,
    GLM_NAMES,
    GPT_OSS_NAMES,
    GRANITE_MOE_NAMES,
    HUNYUAN_NAMES,
    HUNYUAN_NORMS,
    HY_V3_NAMES,
    LAGUNA_NAMES,
    LING_NAMES,
    LLAMA4_NAMES,
    MIMO_NAMES,
    MINIMAX3_NAMES,
    MINIMAX_NAMES,
    MIXTRAL_NAMES,
    MOE_NAMES,
    NAMES,
    PHI2_NAMES,
    PHI2_OUTER,
    PHI3_NAMES,
    POST_NAMES,
    ROUTED_NAMES,
    STARCODER2_NAMES,
    STEP_NAMES,
)


def family_of(meta: Metadata) -> Family:
    """Return the family of a file.

    Raises:
        CheckpointError: It is unknown, or is not read with experts, or without, or has more layers
            than any model.
    """
    known = sorted({*FAMILIES, *MIXTURES})
    if meta.arch not in known:
        raise meta.refuse("general.architecture", f"is not read; known are {', '.join(known)}")
    if meta.integer("block_count", 1) > MAX_LAYERS:
        raise meta.refuse(f"{meta.arch}.block_count", f"but at most {MAX_LAYERS} can be")
    experts = meta.integer("expert_count", 0)
    family = (MIXTURES if experts else FAMILIES).get(meta.arch)
    if family is None:
        kind = "without experts" if meta.arch in MIXTURES else "with experts"
        raise meta.refuse(f"{meta.arch}.expert_count", f"but {meta.arch} is not read {kind}")
    changed: dict[str, Any] = {}
    for end, names in family.instead.items():
        if hybrids.has(meta, end):
            changed["names"] = {**family.names, **names}
    if family.further:
        changed["layers"] = hybrids.own_layers(meta)
    if family.parted is not None:
        changed["rows"] = family.parted(meta)
    return replace(family, **changed) if changed else family


def config_of(meta: Metadata) -> Values:
    """Return what config.json would hold.

    Raises:
        CheckpointError: A key is missing or malformed, or names something that is not served.
    """
    family = family_of(meta)
    return {
        "architectures": [family.architecture],
        "dtype": meta.dtype(),
        "vocab_size": meta.shape("token_embd.weight")[0],
        "hidden_size": meta.integer("embedding_length"),
        "num_hidden_layers": meta.integer("block_count"),
        "max_position_embeddings": meta.integer("context_length"),
        **dict.fromkeys(dense.EPSILONS, dense.epsilon(meta)),
        "tie_word_embeddings": "output.weight" not in meta.tensors,
        "eos_token_id": meta.ending_ids(),
        "bos_token_id": meta.token_id("bos"),
        **(_attention(meta, family) if family.attends else {}),
        **encoders.pooling(meta),
        **family.differences(meta),
    }


def _attention(meta: Metadata, family: Family) -> Values:
    """Return what config.json would hold of attention and MLPs."""
    size = meta.least if family.mixed else meta.integer
    experts = meta.integer("expert_feed_forward_length", 0)  # where no MLP is without them
    heads, head_dim = size("attention.head_count"), dense.head_size(meta)
    equal = not (family.latents or family.narrow)
    if equal and meta.integer("attention.value_length", head_dim) != head_dim:
        raise meta.refuse(f"{meta.arch}.attention.value_length", f"but keys have {head_dim}")
    return {
        "intermediate_size": size("feed_forward_length", experts or None),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "attention_bias": hybrids.has(meta, "attn_q.bias") or hybrids.has(meta, "attn_qkv.bias"),
        "mlp_bias": "blk.0.ffn_up.bias" in meta.tensors,
        **rotation_of(meta, head_dim),
    }


#: By general.architecture.
FAMILIES = {
    **encoders.FAMILIES,
    **older.FAMILIES,
    **published.FAMILIES,
    "apertus": Family(
        "ApertusForCausalLM",
        dense.apertus,
        APERTUS_NAMES,
        listed={f"xielu.{n}": f"mlp.act_fn.{n}" for n in ("alpha_n", "alpha_p", "beta", "eps")},
    ),
    "arcee": Family("ArceeForCausalLM", pairs=True),
    "cohere2": Family("Cohere2ForCausalLM", dense.cohere2),
    "command-r": Family("CohereForCausalLM", dense.cohere),
    "deci": Family("DeciLMForCausalLM", uneven.deci, **uneven.DECI),
    # Of models without experts, Youtu has such latents.
    "deepseek2": Family("YoutuForCausalLM", mixtures.latents, DEEPSEEK_NAMES, latents=True),
    "ernie4_5": Family("Ernie4_5ForCausalLM"),
    "exaone": Family("LlamaForCausalLM"),
    "exaone4": Family("Exaone4ForCausalLM", dense.windowed_by_layer, POST_NAMES),
    "falcon-h1": Family(
        "FalconH1ForCausalLM", spaces.falcon_h1, FALCON_H1_NAMES, **spaces.FALCON_H1
    ),
    "gemma": Family("GemmaForCausalLM", norm_offset=1.0),
    "gemma2": Family("Gemma2ForCausalLM", dense.gemma2, GEMMA_NAMES, norm_offset=1.0),
    "gemma3": Family("Gemma3ForCausalLM", dense.gemma3, GEMMA_NAMES, norm_offset=1.0),
    "gemma3n": Family("Gemma3nForCausalLM", gemmas.gemma3n, GEMMA3N_NAMES, **gemmas.GEMMA3N),
    "gemma4": Family("Gemma4ForCausalLM", gemmas.gemma4, GEMMA4_NAMES, **gemmas.GEMMA4),
    "glm4": Family("Glm4ForCausalLM", dense.rotated_in_part, GLM4_NAMES),
    "granite": Family("GraniteForCausalLM", dense.granite, pairs=True),
    "granitehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        spaces.granite_hybrid,
        GRANITE_HYBRID_NAMES,
        **spaces.GRANITE,
    ),
    "hunyuan-dense": Family("HunYuanDenseV1ForCausalLM", names={**NAMES, **HUNYUAN_NORMS}),
    "internlm2": Family("LlamaForCausalLM", pairs=True),
    "lfm2": Family("Lfm2ForCausalLM", hybrids.lfm2, LFM2_NAMES, **hybrids.LFM2),
    "llama": Family("LlamaForCausalLM", dense.llama, pairs=True),
    "mamba": Family("MambaForCausalLM", spaces.mamba, MAMBA_NAMES, **spaces.MAMBA),
    "mamba2": Family("Mamba2ForCausalLM", spaces.mamba2, MAMBA2_NAMES, **spaces.MAMBA2),
    "minicpm": Family("GraniteForCausalLM", dense.minicpm, pairs=True),
    "minicpm3": Family("MiniCPM3ForCausalLM", dense.minicpm3, DEEPSEEK_NAMES),
    "mistral3": Family("Ministral3ForCausalLM", dense.ministral3, pairs=True),
    "nemotron": Family("NemotronForCausalLM", dense.rotated_in_part, norm_offset=1.0),
    "nemotron_h": Family(
        "NemotronHForCausalLM", spaces.nemotron_h, NEMOTRON_H_NAMES, **spaces.NEMOTRON_H
    ),
    "olmo": Family("OlmoForCausalLM", dense.olmo, pairs=True),
    "olmo2": Family("Olmo2ForCausalLM", dense.olmo2, POST_NAMES),
    "pangu-embedded": Family("LlamaForCausalLM"),
    "phi2": Family(
        "PhiForCausalLM",
        dense.rotated_in_part,
        PHI2_NAMES,
        outer=PHI2_OUTER,
        parted=older.sizes,
    ),
    "phi3": Family("Phi3ForCausalLM", dense.phi3, PHI3_NAMES),
    "qwen2": Family("Qwen2ForCausalLM"),
    # Of models that see: without images, all positions of a token are the same.
    "qwen2vl": Family("Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3ForCausalLM"),
    "qwen3vl": Family("Qwen3ForCausalLM"),
    "seed_oss": Family("SeedOssForCausalLM", dense.seed_oss, POST_NAMES),
    "smollm3": Family("SmolLM3ForCausalLM", pairs=True),
    "stablelm": Family("StableLmForCausalLM", dense.stablelm),
    "starcoder2": Family("Starcoder2ForCausalLM", dense.starcoder2, STARCODER2_NAMES),
    "qwen35": Family("Qwen3_5ForCausalLM", hybrids.qwen35, QWEN35_NAMES, **hybrids.QWEN35),
    "xverse": Family("LlamaForCausalLM", pairs=True),
}
#: Those with experts.
MIXTURES = {
    **encoders.MIXTURES,
    **older.MIXTURES,
    **published.MIXTURES,
    "afmoe": Family("AfmoeForCausalLM", mixtures.afmoe, AFMOE_NAMES),
    "bailingmoe2": Family("BailingMoeV2ForCausalLM", mixtures.ling, LING_NAMES),
    "deepseek2": Family("DeepseekV3ForCausalLM", mixtures.deepseek, DEEPSEEK_NAMES, latents=True),
    "deepseek32": Family("DeepseekV32ForCausalLM", uneven.deepseek32, GLM_DSA_NAMES, latents=True),
    "dots1": Family("Dots1ForCausalLM", mixtures.dots, ROUTED_NAMES),
    "ernie4_5-moe": Family("Ernie4_5_MoeForCausalLM", mixtures.ernie_moe, ERNIE_NAMES),
    "exaone-moe": Family(
        "ExaoneMoeForCausalLM", mixtures.exaone_moe, EXAONE_MOE_NAMES, further=QWEN_FURTHER_NAMES
    ),
    "gemma4": Family("Gemma4ForCausalLM", gemmas.gemma4_moe, GEMMA4_NAMES, **gemmas.GEMMA4),
    "glm-dsa": Family("GlmMoeDsaForCausalLM", uneven.glm_dsa, GLM_DSA_NAMES, latents=True),
    "glm4moe": Family("Glm4MoeForCausalLM", mixtures.glm_moe, GLM_NAMES),
    "gpt-oss": Family("GptOssForCausalLM", mixtures.gpt_oss, GPT_OSS_NAMES),
    "granitemoe": Family(
        "GraniteMoeForCausalLM", mixtures.granite_moe, GRANITE_MOE_NAMES, pairs=True
    ),
    "granitehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        spaces.granite_hybrid,
        GRANITE_HYBRID_NAMES,
        **spaces.GRANITE,
    ),
    "hy_v3": Family("HYV3ForCausalLM", uneven.hy_v3, HY_V3_NAMES),
    "hunyuan-moe": Family("HunYuanMoEV1ForCausalLM", mixtures.hunyuan_moe, HUNYUAN_NAMES),
    "kimi-linear": Family(
        "KimiLinearForCausalLM", hybrids.kimi_linear, KIMI_LINEAR_NAMES, **hybrids.KIMI_LINEAR
    ),
    "laguna": Family("LagunaForCausalLM", uneven.laguna, LAGUNA_NAMES, **uneven.LAGUNA),
    "lfm2moe": Family("Lfm2MoeForCausalLM", hybrids.lfm2_moe, LFM2_NAMES, **hybrids.LFM2),
    "llama": Family("MixtralForCausalLM", mixtures.mixtral, MIXTRAL_NAMES, pairs=True),
    "llama4": Family("Llama4ForCausalLM", mixtures.llama4, LLAMA4_NAMES),
    "mellum": Family("MellumForCausalLM", uneven.mellum, MOE_NAMES),
    "mimo2": Family("MiMoV2FlashForCausalLM", uneven.mimo2, MIMO_NAMES, **uneven.MIMO),
    "minimax-m2": Family("MiniMaxM2ForCausalLM", mixtures.minimax, MINIMAX_NAMES),
    "minimax-m3": Family(
        "MiniMaxM3VLForCausalLM", uneven.minimax3, MINIMAX3_NAMES, norm_offset=1.0
    ),
    "mistral4": Family("Mistral4ForCausalLM", mixtures.mistral4, DEEPSEEK_NAMES, latents=True),
    "nemotron_h_moe": Family(
        "NemotronHForCausalLM", spaces.nemotron_h_moe, NEMOTRON_H_NAMES, **spaces.NEMOTRON_H
    ),
    "olmoe": Family("OlmoeForCausalLM", mixtures.experts, MOE_NAMES),
    "phimoe": Family("PhimoeForCausalLM", mixtures.phi_moe, MIXTRAL_NAMES),
    "qwen2moe": Family("Qwen2MoeForCausalLM", mixtures.qwen2_moe, MOE_NAMES),
    "qwen3moe": Family("Qwen3MoeForCausalLM", mixtures.qwen3_moe, MOE_NAMES),
    "qwen3vlmoe": Family("Qwen3MoeForCausalLM", mixtures.qwen3_moe, MOE_NAMES),
    "qwen3next": Family(
        "Qwen3NextForCausalLM", hybrids.qwen_next, QWEN_NEXT_NAMES, **hybrids.QWEN_NEXT
    ),
    "qwen35moe": Family(
        "Qwen3_5MoeForCausalLM", hybrids.qwen35_moe, QWEN35_NAMES, **hybrids.QWEN35
    ),
    "step35": Family("Step3p5ForCausalLM", uneven.step35, STEP_NAMES, **uneven.STEP),
}
