"""Dots 3 Note (text): latent attention to chosen tokens, three of four layers with a window and
sizes of their own, a gate for each head, experts and shared ones.

Defaults are those of transformers' Dots3NoteTextConfig. The layer that predicts further tokens has
the form that vLLM's `Dots3NoteMTP` reads.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import corrected_router
from hotshoe_models.further import DEEPSEEK, add_further, further_type
from hotshoe_models.mixtures import (
    DENSE,
    SPARSE,
    mixture,
    sparse_types,
    with_expert_defaults,
    with_experts,
)
from hotshoe_models.spec import IndexSpec, LatentSpec, LayerSpec
from hotshoe_models.values import (
    FULL,
    SLIDING,
    count,
    decoder_spec,
    flag,
    layer_types,
    mapping,
    number,
    refuse,
    rope_key,
    unused_layers,
)

DEFAULTS: dict[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 46,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 1.0,
    "kv_lora_rank": 512,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "max_position_embeddings": 524288,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "mlp_layer_types": None,
    "attention_bias": False,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "mlp_bias": False,
    "head_dim": 256,
    "layer_types": None,
    "sliding_window": None,
    "shared_experts_intermediate_size": 1536,
    "num_nextn_predict_layers": 1,
}
#: Layers that choose the tokens that they read. Published files call them full.
INDEXED = "indexed_attention"
KNOWN = (INDEXED, FULL, SLIDING)
MIXERS = {INDEXED: "indexed", FULL: "latent", SLIDING: "latent"}
#: Sizes of layers with a window, where a file does not say them.
WINDOWED = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
FIRST = "first_k_dense_replace"
THETAS = {INDEXED: 80_000_000.0, FULL: 80_000_000.0, SLIDING: 50_000.0}
WINDOW = 512
#: The layer that predicts further tokens has no experts, and an embedding of its own.
FURTHER = replace(
    DEEPSEEK, embedding="model.mtp.embed_tokens", passes_normed=True, stored_join=True
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Dots3NoteForCausalLM, and the text part of Dots3NoteForConditionalGeneration."""
    config = with_expert_defaults(_respelled(config), DEFAULTS)
    types = layer_types(config, lambda i: INDEXED, KNOWN)
    made = {kind: _layer(config, ctx, kind, types.index(kind)) for kind in dict.fromkeys(types)}
    experts = mixture(
        config,
        corrected_router(config),
        experts="n_routed_experts",
        shared_size=count(config, "n_shared_experts")
        * config.size("shared_experts_intermediate_size"),
    )
    layers = with_experts([made[kind] for kind in types], experts, sparse_types(config))
    spec = decoder_spec(
        config,
        layers,
        latent=layers[0].latent,
        o_bias=flag(config, "attention_bias"),
        mlp_bias=flag(config, "mlp_bias"),
    )
    ctx.weights.ignore([r"^(model\.)?mtp\."], "layers that predict further tokens")
    spec = unused_layers(config, spec, "num_nextn_predict_layers")
    kind = further_type(config, "mtp_layer_types", SLIDING, KNOWN)
    kind = INDEXED if kind == FULL and INDEXED in types else kind
    own = [made[kind] if kind in made else _layer(config, ctx, kind, len(types))]
    model = DenseDecoder(spec, ctx)
    return add_further(model, spec, ctx, spec.further_layers, FURTHER, own=own)


def _respelled(config: ModelConfig) -> ModelConfig:
    """Return the configuration by the keys that transformers writes."""
    values: dict[str, Any] = dict(config.values)
    # Files that transformers writes say of each layer what it is, and have this key.
    chooses = config.get("use_dsa", None if "per_layer_config" in values else True)
    full = FULL if chooses is False else INDEXED
    types = values.get("layer_types")
    if types is None:
        plain = not config.get("use_sliding_window", True)
        layers = config.size("num_hidden_layers", DEFAULTS["num_hidden_layers"])
        types = [full if plain or i < 2 or i % 4 == 1 else SLIDING for i in range(layers)]
    elif chooses is not None and isinstance(types, list):
        types = [full if kind in (FULL, INDEXED) else kind for kind in types]
    values["layer_types"] = types
    shared = "moe_shared_expert_intermediate_size"
    if shared in values:
        values["shared_experts_intermediate_size"] = values.pop(shared)
    every = values.pop("moe_layer_freq", 1)
    if isinstance(every, list) and values.get("mlp_layer_types") is None:
        first = count(config, FIRST) if FIRST in values else 1
        values["mlp_layer_types"] = [
            SPARSE if has and i >= first else DENSE for i, has in enumerate(every)
        ]
    elif every != 1:
        raise refuse(config, "moe_layer_freq", "has experts in every layer behind the dense ones")
    return replace(config, values=values)


def _sized(config: ModelConfig, kind: str, i: int) -> ModelConfig:
    """Return the configuration with the sizes of a type of layers, whose first one is i."""
    if kind != SLIDING:
        return config
    own = {key: config.get(f"swa_{key}", value) for key, value in WINDOWED.items()}
    own["qk_rope_head_dim"] = config.get("swa_qk_rope_head_dim")
    found = mapping(config, "per_layer_config").get(str(i))
    own |= found if isinstance(found, Mapping) else {}
    sized = replace(config, values={**config.values, **own})
    if own["qk_rope_head_dim"] is not None:
        return sized
    rest = sized.size("head_dim") - sized.size("qk_nope_head_dim")
    return replace(sized, values={**sized.values, "qk_rope_head_dim": rest})


def _layer(config: ModelConfig, ctx: BuildContext, kind: str, first: int) -> LayerSpec:
    """Describe the layers of a type, the first of which has the number `first`."""
    config = _sized(config, kind, first)
    hidden, rank = config.size("hidden_size"), config.size("q_lora_rank")
    nope, rope = config.size("qk_nope_head_dim"), config.size("qk_rope_head_dim")
    latent_dim, eps = config.size("kv_lora_rank"), number(config, "rms_norm_eps")
    index = IndexSpec(
        num_heads=config.size("index_n_heads"),
        head_dim=config.size("index_head_dim"),
        top_k=config.size("index_topk"),
        interleaved=True,
    )
    if kind == INDEXED and index.head_dim < rope:
        raise refuse(config, "index_head_dim", f"rotates {rope} channels of it")
    latent = LatentSpec(
        q_dim=rank,
        latent_dim=latent_dim,
        nope_dim=nope,
        rope_dim=rope,
        v_dim=config.size("v_head_dim"),
        bias=flag(config, "attention_bias"),
        # Queries are as long as those of the hidden states would be, and so are normed latents.
        up_scale=(hidden / latent_dim) ** 0.5,
        scale=((nope + rope) * rank / hidden) ** -0.5,
        gate="g_proj",
        norm_eps=eps,
        rope_norm="k_rope_only_layernorm",
        index=index if kind == INDEXED else None,
    )
    window = config.size("sliding_window", config.size("sliding_window_size", WINDOW))
    return LayerSpec(
        _rotation(config, ctx, kind, rope),
        window if kind == SLIDING else None,
        mixer=MIXERS[kind],
        num_heads=config.size("num_attention_heads"),
        latent=latent,
    )


def _rotation(config: ModelConfig, ctx: BuildContext, kind: str, rope_dim: int) -> Rotation:
    """Read how a type's layers rotate all of their rotated channels."""
    rope, theta = mapping(config, rope_key(config)), THETAS[kind]
    own = rope.get(kind, rope) if any(isinstance(part, Mapping) for part in rope.values()) else rope
    if not isinstance(own, Mapping):
        raise refuse(config, rope_key(config), f"needs an object for layers of type {kind}")
    plain = {key: value for key, value in own.items() if key != "partial_rotary_factor"}
    values = {**config.values, "rope_scaling": None, "rope_parameters": plain}
    values["partial_rotary_factor"] = None
    if kind == SLIDING:
        values["rope_theta"] = config.get("swa_rope_theta")
    rotation = Rotation.from_config(values, rope_dim, ctx.max_model_len, default_theta=theta)
    return replace(rotation, interleaved=True)
