"""DeepSeek V3.2: DeepSeek V3 whose queries attend to tokens that an indexer chooses.

Defaults are those of transformers' DeepseekV32Config. A Hadamard transform of the indexer's q and
keys, which serves their 8-bit form alone, changes no product of theirs, so there is none here.
"""

from collections.abc import Sequence
from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import SHARED, corrected_router, latent_spec, with_mixtures
from hotshoe_models.further import add_further
from hotshoe_models.mixtures import sparse_types, with_expert_defaults
from hotshoe_models.spec import DecoderSpec, IndexSpec
from hotshoe_models.values import count, refuse, unused_layers

DEFAULTS = {
    **SHARED,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 163840,
    "mlp_bias": False,
    "head_dim": 64,
    "first_k_dense_replace": 3,
    "mlp_layer_types": None,
    "layer_types": None,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "num_nextn_predict_layers": 1,
}
#: A layer's type, as different releases of transformers write it.
INDEXED = ("indexed_attention", "deepseek_sparse_attention")
#: Whether a layer's indexer is its own or that of one before it, as lists and patterns write it.
INDEXER_TYPES = {"full": "full", "shared": "shared", "F": "full", "S": "shared"}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build DeepseekV32ForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    return sparse_decoder(config, ctx, ["indexed"] * config.size("num_hidden_layers"))


def sparse_decoder(
    config: ModelConfig, ctx: BuildContext, mixers: Sequence[str], interleaved: bool = False
) -> DenseDecoder:
    """Build a decoder of sparse latent attention; see `sparse_spec`.

    The layer that predicts further tokens chooses for itself, whatever the last one does.
    """
    spec = sparse_spec(config, ctx, mixers, interleaved)
    spec = unused_layers(config, spec, "num_nextn_predict_layers")
    own = [replace(spec.layers[-1], mixer="indexed")]
    return add_further(DenseDecoder(spec, ctx), spec, ctx, spec.further_layers, own=own)


def sparse_spec(
    config: ModelConfig, ctx: BuildContext, mixers: Sequence[str], interleaved: bool = False
) -> DecoderSpec:
    """Describe a decoder of sparse latent attention.

    Args:
        config: With the family's defaults.
        ctx: The build context.
        mixers: Of each layer, "indexed" or "shared".
        interleaved: The indexer's rotated pairs are neighbors; attention's always are.
    """
    _check(config)
    spec = latent_spec(replace(config, values={**config.values, "rope_interleave": True}), ctx)
    assert spec.latent is not None
    index = IndexSpec(
        num_heads=config.size("index_n_heads"),
        head_dim=config.size("index_head_dim"),
        top_k=config.size("index_topk"),
        interleaved=interleaved,
    )
    if index.head_dim < spec.latent.rope_dim:
        raise refuse(config, "index_head_dim", f"rotates {spec.latent.rope_dim} channels of it")
    layers = zip(spec.layers, mixers, strict=True)
    spec = replace(
        spec,
        latent=replace(spec.latent, index=index),
        layers=tuple(replace(layer, mixer=mixer) for layer, mixer in layers),
    )
    return with_mixtures(config, spec, corrected_router, sparse_types(config))


def _check(config: ModelConfig) -> None:
    """Refuse layers of another kind, and q that is made of no latents."""
    types = config.get("layer_types")
    count = config.size("num_hidden_layers")
    if types is not None and types not in [[kind] * count for kind in INDEXED]:
        raise refuse(config, "layer_types", f"has {INDEXED[0]} in each of {count} layers")
    config.size("q_lora_rank")


def indexer_types(config: ModelConfig) -> tuple[list[str], str]:
    """Return whether each layer's indexer is of its own, "full", or "shared", and the key that says
    so: a list, else a pattern, else a frequency."""
    layers = config.size("num_hidden_layers")
    named = [key for key in ("indexer_types", "index_topk_pattern") if config.get(key) is not None]
    every = max(count(config, "index_topk_freq"), 1) if "index_topk_freq" in config.values else 1
    skipped = "index_skip_topk_offset"
    first = count(config, skipped) if skipped in config.values else 2
    types = ["shared" if max(i - first + 1, 0) % every else "full" for i in range(layers)]
    if named:
        given = config.get(named[0])
        given = given if isinstance(given, (list, str)) else []
        types = [INDEXER_TYPES.get(kind, "") if isinstance(kind, str) else "" for kind in given]
    if len(types) != layers or "" in types:
        raise refuse(config, named[0], f"needs full or shared for each of {layers} layers")
    return types, (*named, skipped)[0]
