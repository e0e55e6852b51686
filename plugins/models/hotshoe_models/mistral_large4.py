"""Mistral Large 4 (text): latent attention to chosen tokens; layers share latents and choices.

Pairs of channels turn at learned rates, or, in some layers, none at all; learned factors let each
head's q grow with its position, in attention and in the choice of tokens. Experts stand behind a
softmax, beside a shared one. Defaults are those of transformers' MistralLarge4TextConfig.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.composite import WHY
from hotshoe_models.consolidated import MATRICES, RENAMES, UNREAD
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import latent_spec, with_mixtures
from hotshoe_models.deepseek_v32 import INDEXED
from hotshoe_models.further import refuse_further
from hotshoe_models.glm_dsa import indexed_mixers
from hotshoe_models.mistral4 import softmax_router
from hotshoe_models.mixtures import sparse_types, with_expert_defaults
from hotshoe_models.smollm3 import rotated_layers
from hotshoe_models.spec import DecoderSpec, IndexSpec, LatentSpec
from hotshoe_models.values import optional_number, refuse, with_rope

DEFAULTS: dict[str, Any] = {
    "vocab_size": 204800,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "moe_intermediate_size": 6144,
    "num_hidden_layers": 72,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "routed_scaling_factor": 1.0,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 64,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "mlp_layer_types": None,
    "attention_bias": False,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "head_dim": 64,
    "first_k_dense_replace": 1,
    "layer_types": None,
    "indexer_types": None,
    "no_rope_layers": None,
    "kv_source_layers": None,
    "final_logit_softcapping": 30.0,
}
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 2048.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
}
#: What the family has in one way alone, whatever a file says.
FIXED = {"rope_interleave": True, "norm_topk_prob": True, "q_lora_rank": None}
RATES, GROWTH = "model.rotary_emb.alpha", "softmax_scaling"
#: Names in published files, beside those of Mistral's own form, and names of their modules.
OWN_RENAMES = (
    (r"^lerope\.alpha$", RATES),
    (r"\.attention\.", ".self_attn."),
    (r"\.ssmax_scaling\.s$", f".{GROWTH}.scale"),
    (r"\.ssmax_scaling\.b$", f".{GROWTH}.bias"),
)
SOURCES = "kv_source_layers"


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of MistralLarge4ForConditionalGeneration."""
    config = with_rope(with_expert_defaults(config, DEFAULTS), ROPE)
    config = replace(config, values={**config.values, **FIXED})
    spec = with_mixtures(config, _spec(config, ctx), softmax_router, sparse_types(config))
    for pattern, name in (*RENAMES, *MATRICES):
        ctx.weights.rename(pattern.pattern, name)
    for own, name in OWN_RENAMES:
        ctx.weights.rename(own, name)
    ctx.weights.ignore([UNREAD.pattern], WHY)
    ctx.weights.ignore([r"^mtp_dspark\."], "layers that predict further tokens")
    refuse_further(ctx, "mtp_dspark drafts blocks of tokens at once, which no method here does")
    ctx.weights.ignore([rf"^{RATES}$"])  # where no layer of this stage rotates
    return DenseDecoder(spec, ctx)


def _spec(config: ModelConfig, ctx: BuildContext) -> DecoderSpec:
    """Describe the decoder but for its experts."""
    count, types = config.size("num_hidden_layers"), config.get("layer_types")
    if types not in [None, *([kind] * count for kind in INDEXED)]:
        raise refuse(config, "layer_types", f"has {INDEXED[0]} in each of {count} layers")
    spec, rotates = latent_spec(config, ctx), rotated_layers(config)
    assert spec.latent is not None and spec.layers[0].rotation is not None
    turning = replace(spec.layers[0].rotation, learned=RATES)
    latent = replace(
        spec.latent,
        temperature=GROWTH,
        norm_eps=spec.norm_eps,
        index=_index(config, spec.latent),
    )
    # A layer that does not rotate has no channels that would be.
    still = replace(latent, nope_dim=latent.nope_dim + latent.rope_dim, rope_dim=0)
    layers = tuple(
        replace(
            layer,
            mixer=mixer,
            rotation=turning if turns else Rotation((), interleaved=True),
            latent=latent if turns else still,
            shares=source,
        )
        for layer, mixer, turns, source in zip(
            spec.layers, indexed_mixers(config), rotates, _sources(config, rotates), strict=True
        )
    )
    cap = optional_number(config, "final_logit_softcapping")
    return replace(spec, layers=layers, latent=latent, logits_softcap=cap)


def _index(config: ModelConfig, latent: LatentSpec) -> IndexSpec:
    index = IndexSpec(
        num_heads=config.size("index_n_heads"),
        head_dim=config.size("index_head_dim"),
        top_k=config.size("index_topk"),
        interleaved=True,
        input_norm="q_input_norm",
        temperature=GROWTH,
    )
    if index.head_dim < latent.rope_dim:
        raise refuse(config, "index_head_dim", f"rotates {latent.rope_dim} channels of it")
    return index


def _sources(config: ModelConfig, rotates: Sequence[bool]) -> list[int | None]:
    """Return for each layer the one before it whose latents it reads, None for its own.

    transformers reads those of the last layer that shares its own and rotates as the reader does;
    files that name another one are refused.
    """
    count, given = config.size("num_hidden_layers"), config.get(SOURCES)
    if given is None:
        return [None] * count
    if not isinstance(given, list) or len(given) != count:
        raise refuse(config, SOURCES, f"needs one entry for each of {count} layers")
    found: list[int | None] = []
    for i, source in enumerate(given):
        if type(source) is not int or not 0 <= source <= i or given[source] != source:
            why = f"layer {i} needs its own number, or that of an earlier one with latents"
            raise refuse(config, SOURCES, why)
        shared = [j for j in range(i) if j in given[j + 1 :] and rotates[j] == rotates[i]]
        if source != i and shared[-1:] != [source]:
            why = f"layer {i} can read the latents alone of the last layer that shares its own and "
            raise refuse(config, SOURCES, why + "rotates as this one does")
        found.append(None if source == i else source)
    return found
