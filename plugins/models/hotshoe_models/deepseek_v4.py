"""DeepSeek V4: attention to a window and to compressed entries, hyper-connections, and experts that
first layers choose by tokens alone.

Defaults are those of transformers' DeepseekV4Config; names are those of the published files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, Mixture, MoeNames, Rotation
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.hyper import BASE, DIGITS, HyperDecoder
from hotshoe_models.hyper_further import HyperFurther
from hotshoe_models.mixtures import mixture, with_expert_defaults
from hotshoe_models.spec import (
    CompressedSpec,
    Compression,
    DecoderSpec,
    IndexSpec,
    LayerSpec,
    WeightNames,
)
from hotshoe_models.stream_specs import HyperSpec
from hotshoe_models.values import count, decoder_spec, flag, mapping, number, refuse, rope_key

WINDOW, SPARSE, HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
#: What published files call the types of layers, and how many tokens an entry stands for there.
RATIOS = {0: WINDOW, 4: SPARSE, 128: HEAVY}
HASHED, CHOSEN = "hash_moe", "moe"
DEFAULTS = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "num_experts_per_tok": 6,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "max_position_embeddings": 1048576,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "layer_types": None,
    "compress_rates": None,
    "mlp_layer_types": None,
    "rope_parameters": None,
    "partial_rotary_factor": None,
    "num_nextn_predict_layers": 1,
}
#: First layers whose experts tokens choose, in files that say nothing of them.
HASH_LAYERS = 3
EXPERTS = MoeNames(
    router="ffn.gate",
    correction="ffn.gate.bias",
    table="ffn.gate.tid2eid",
    gate_up=("ffn.experts.{}.w1", "ffn.experts.{}.w3"),
    down="ffn.experts.{}.w2",
    shared_gate_up=("ffn.shared_experts.w1", "ffn.shared_experts.w3"),
    shared_down="ffn.shared_experts.w2",
)
NAMES = WeightNames(
    input_norm="attn_norm",
    mlp_norm="ffn_norm",
    bare=(r"^(?=(layers|norm)\.)", "model."),
)
#: Names of published files that transformers, or another family, writes otherwise.
RENAMES = (
    (r"^embed\.", "model.embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"^hc_head_", "model.hc_head.hc_"),
    (r"\.attn\.kv_norm\.", ".attn.norm."),
    (r"\.scale$", ".weight_scale_inv"),
    (r"^model\.mtp\.", "mtp."),
)


def build(config: ModelConfig, ctx: BuildContext) -> HyperDecoder:
    """Build DeepseekV4ForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    _check(config)
    spec = _spec(config, ctx)
    decoder = HyperDecoder(spec, ctx)
    for pattern, name in RENAMES:
        ctx.weights.rename(pattern, name)
    ctx.weights.ignore([r"^mtp\."], "layers that predict further tokens")
    if ctx.further and count(config, "num_nextn_predict_layers"):
        decoder.draft_head = HyperFurther(spec, ctx, decoder, _further(config, ctx))
    return decoder


def _check(config: ModelConfig) -> None:
    """Refuse what the family has in one way alone."""
    if config.size("num_key_value_heads") != 1:
        raise refuse(config, "num_key_value_heads", "has one row for all heads")
    for key in ("attention_bias", "mlp_bias", "tie_word_embeddings"):
        if flag(config, key):
            raise refuse(config, key, "has no such thing")
    if not flag(config, "norm_topk_prob"):
        raise refuse(config, "norm_topk_prob", "divides weights by their sum")
    if config.size("vocab_size") > BASE**DIGITS:
        raise refuse(config, "vocab_size", f"has at most {BASE**DIGITS} tokens")
    heads, groups = config.size("num_attention_heads"), config.size("o_groups")
    if heads % groups:
        raise refuse(config, "o_groups", f"has {heads} heads to divide into groups of equal size")


def _spec(config: ModelConfig, ctx: BuildContext) -> DecoderSpec:
    rope_dim, made = _rope_dim(config), _layers(config, ctx)
    if config.size("index_head_dim") < rope_dim:
        raise refuse(config, "index_head_dim", f"rotates {rope_dim} channels of it")
    kinds = zip(_layer_types(config), _expert_types(config), strict=True)
    layers = tuple(made[kind] for kind in kinds)
    return decoder_spec(
        config,
        layers,
        intermediate_size=0,
        compressed=CompressedSpec(
            q_dim=config.size("q_lora_rank"),
            rope_dim=rope_dim,
            window=config.size("sliding_window"),
            groups=config.size("o_groups"),
            group_dim=config.size("o_lora_rank"),
        ),
        hyper=HyperSpec(
            count=config.size("hc_mult"),
            iterations=config.size("hc_sinkhorn_iters"),
            eps=number(config, "hc_eps"),
        ),
        names=NAMES,
    )


def _layers(config: ModelConfig, ctx: BuildContext) -> dict[tuple[str, str], LayerSpec]:
    """Return what a layer is, by its type and by how its experts are chosen."""
    rotations, mixtures = _rotations(config, ctx, _rope_dim(config)), _mixtures(config)
    return {
        (kind, experts): LayerSpec(
            rotations["main" if kind == WINDOW else "compress"],
            mixer="compressed",
            compression=compression,
            mixture=mixture,
        )
        for kind, compression in _compressions(config).items()
        for experts, mixture in mixtures.items()
    }


def _further(config: ModelConfig, ctx: BuildContext) -> LayerSpec:
    """Return the first layer that predicts further tokens: its ratio lies behind the others."""
    key, first = "compress_ratios", config.size("num_hidden_layers")
    ratios = config.get(key)
    behind = ratios[first : first + 1] if isinstance(ratios, list) else []
    kinds = [kind for ratio, kind in RATIOS.items() if behind in ([], [ratio])]
    if not kinds:
        raise refuse(config, key, f"needs a list of {', '.join(map(str, RATIOS))}")
    return _layers(config, ctx)[kinds[0], CHOSEN]


def _rope_dim(config: ModelConfig) -> int:
    """Return the channels that are rotated: said, or a share of a head."""
    head_dim = config.size("head_dim")
    if config.get("qk_rope_head_dim") is not None:
        size, key = config.size("qk_rope_head_dim"), "qk_rope_head_dim"
    else:
        key = "partial_rotary_factor"
        share = config.get(key)
        size = int(head_dim * (64 / 512 if share is None else number(config, key)))
    if size % 2 or not 0 < size <= head_dim:
        raise refuse(config, key, f"rotates an even number of {head_dim} channels")
    return size


def _rotations(config: ModelConfig, ctx: BuildContext, rope_dim: int) -> dict[str, Rotation]:
    """Return the rotations of layers with a window alone, "main", and of others, "compress".

    A file has parameters of both by these names, or one set, by which the second is scaled. Its
    cosines and sines are never larger for that.
    """
    given = dict(mapping(config, rope_key(config)))
    if not {"main", "compress"} <= given.keys():
        theta = config.require("compress_rope_theta")
        given = {
            "main": {"rope_type": "default", "rope_theta": config.require("rope_theta")},
            "compress": {**given, "rope_theta": theta},
        }
        if "yarn" in (given["compress"].get("rope_type"), given["compress"].get("type")):
            given["compress"].setdefault("attention_factor", 1.0)
    for label in ("main", "compress"):
        if not isinstance(given[label], Mapping):
            raise refuse(config, rope_key(config), f"needs an object for {label}")
        given[label] = {**given[label], "partial_rotary_factor": 1.0}
    values: dict[str, Any] = {**config.values, "rope_parameters": given}
    values.pop("rope_scaling", None)
    return {
        label: replace(
            Rotation.from_config(values, rope_dim, ctx.max_model_len, layer_type=label),
            interleaved=True,
        )
        for label in ("main", "compress")
    }


def _compressions(config: ModelConfig) -> dict[str, Compression | None]:
    """Return the entries of each type of layer."""
    given = mapping(config, "compress_rates")
    rates = replace(
        config,
        values={
            SPARSE: config.get("compress_rate_csa") or 4,
            HEAVY: config.get("compress_rate_hca") or 128,
            **given,
        },
    )
    index = IndexSpec(
        num_heads=config.size("index_n_heads"),
        head_dim=config.size("index_head_dim"),
        top_k=config.size("index_topk"),
    )
    return {
        WINDOW: None,
        SPARSE: Compression(group=rates.size(SPARSE), overlap=True, index=index),
        HEAVY: Compression(group=rates.size(HEAVY), overlap=False, index=None),
    }


def _layer_types(config: ModelConfig) -> list[str]:
    """Return the type of each layer: named, by its ratio, or the family's rule."""
    layers, key = config.size("num_hidden_layers"), "layer_types"
    types: Any = config.get(key)
    if types is None and config.get("compress_ratios") is not None:
        key, ratios = "compress_ratios", config.get("compress_ratios")
        if not isinstance(ratios, list) or not all(r in RATIOS for r in ratios):
            raise refuse(config, key, f"needs a list of {', '.join(map(str, RATIOS))}")
        types = [RATIOS[ratio] for ratio in ratios[:layers]]  # further ones are of further layers
    if types is None:
        types = [HEAVY] * min(layers, 2) + [SPARSE if i % 2 else HEAVY for i in range(layers - 2)]
    if not isinstance(types, list) or len(types) != layers:
        raise refuse(config, key, f"needs one entry for each of {layers} layers")
    if not all(kind in RATIOS.values() for kind in types):
        raise refuse(config, key, f"knows only {WINDOW}, {SPARSE} and {HEAVY}")
    return types


def _expert_types(config: ModelConfig) -> list[str]:
    """Return how each layer's experts are chosen."""
    layers, key = config.size("num_hidden_layers"), "mlp_layer_types"
    said = config.get("num_hash_layers") is not None
    hashed = min(count(config, "num_hash_layers") if said else HASH_LAYERS, layers)
    types: Any = config.get(key) or [HASHED] * hashed + [CHOSEN] * (layers - hashed)
    if not isinstance(types, list) or len(types) != layers:
        raise refuse(config, key, f"needs one entry for each of {layers} layers")
    if not all(kind in (HASHED, CHOSEN) for kind in types):
        raise refuse(config, key, f"knows only {HASHED} and {CHOSEN}")
    return types


def _mixtures(config: ModelConfig) -> dict[str, Mixture]:
    """Return the experts of each type of layer."""
    scale = number(config, "routed_scaling_factor")
    router = RouterSpec("sqrtsoftplus", renormalize=True, scale=scale, correction=True)
    chosen = mixture(
        config,
        router,
        experts="n_routed_experts",
        limit=number(config, "swiglu_limit"),
        shared_size=count(config, "n_shared_experts") * config.size("moe_intermediate_size"),
        names=EXPERTS,
    )
    plain = replace(router, correction=False)
    hashed = replace(chosen, router=plain, table_size=config.size("vocab_size"))
    return {CHOSEN: chosen, HASHED: hashed}
