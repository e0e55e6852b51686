"""MiniMax M3: attention with norms of each head, experts and a shared one with clamped gates.

Most layers of published files choose blocks of tokens that a query reads. Where no text has more
tokens than these blocks, all of it is read, and nothing is built that chooses.
Defaults are those of transformers' MiniMaxM3VLTextConfig. The layer that predicts further tokens
has the form that vLLM's class `MiniMaxM3MTP` reads.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import BlockIndexerSpec, RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import LISTED, add_further
from hotshoe_models.minimax import with_rotary_dim
from hotshoe_models.mixtral import BLOCK, NAMES
from hotshoe_models.mixtures import DENSE, SPARSE, mixture, with_expert_defaults, with_experts
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    FULL,
    count,
    decoder_spec,
    layer_specs,
    layer_types,
    mapping,
    number,
    refuse,
)

DEFAULTS = {
    "vocab_size": 200064,
    "hidden_size": 6144,
    "intermediate_size": 3072,
    "num_hidden_layers": 60,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 524288,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
    "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072,
    "routed_scaling_factor": 2.0,
    "rotary_dim": 64,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "mlp_layer_types": None,
    "layer_types": None,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_block_size": 128,
    "index_topk_blocks": 16,
    "index_local_blocks": 1,
}
DEFAULT_THETA = 5_000_000.0
#: Layers that choose the blocks that they read.
CHOOSING = "minimax_m3_sparse"
#: What published files call sizes of a choice, under `sparse_attention_config`.
SPELLINGS = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}
EXPERTS: MoeNames = replace(
    NAMES,
    shared_gate_up=(f"{BLOCK}shared_experts.gate_proj", f"{BLOCK}shared_experts.up_proj"),
    shared_down=f"{BLOCK}shared_experts.down_proj",
)
DECODER = WeightNames(qk_norm=("self_attn.q_norm", "self_attn.k_norm"))
#: The class of texts alone, which transformers writes, has gates and ups in one matrix.
STACKED = "MiniMaxM3VLForCausalLM"
#: What transformers calls the experts' block, and published files what chooses.
RENAMED = {
    r"\.self_attn\.index_(?=[qk]_(proj|norm)\.)": ".self_attn.indexer.",
    r"\.mlp\.(?=(gate|experts|shared_experts)\.)": f".{BLOCK}",
    rf"\.{BLOCK}gate\.e_score_correction_bias$": f".{BLOCK}e_score_correction_bias",
}
#: How files name the layer that predicts further tokens, what is beside it, and their number.
FURTHER_LAYER, FURTHER_COUNT = "model.mtp.layers.{}.transformer_layer.", "num_mtp_modules"
FURTHER = replace(LISTED, beside="model.mtp.layers.0.", passes_normed=False)
WHY_UNREAD = "the choice of blocks, all of which are read"
UNREAD = r"\.self_attn\.indexer\."


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MiniMaxM3VLForCausalLM, also as MiniMaxM3SparseForConditionalGeneration's texts."""
    config = with_rotary_dim(with_expert_defaults(_respelled(config), DEFAULTS))
    types = layer_types(config, lambda i: FULL, (FULL, CHOOSING))
    gates = (number(config, "swiglu_limit"), number(config, "swiglu_alpha"), 1.0)
    names, experts_names = DECODER, EXPERTS
    if config.architecture == STACKED and not config.get("experts_by_name"):
        names = replace(DECODER, gate_up=("mlp.gate_up_proj",))
        stacked = (f"{BLOCK}shared_experts.gate_up_proj",)
        experts_names = replace(EXPERTS, shared_gate_up=stacked)
    scale = number(config, "routed_scaling_factor")
    experts = mixture(
        config,
        RouterSpec("sigmoid", renormalize=True, correction=True, scale=scale),
        experts="num_local_experts",
        size="intermediate_size",
        limit=gates[0],
        alpha=gates[1],
        shift=gates[2],
        shared_size=config.size("shared_intermediate_size"),
        names=experts_names,
    )
    layers = layer_specs(
        config, ctx, [FULL] * len(types), partial_rotary=True, default_theta=DEFAULT_THETA
    )
    rotation, sparse = layers[0].rotation, _sparse(config)
    assert rotation is not None
    blocks = _blocks(config, ctx, rotation.rotary_dim) if CHOOSING in types else None
    layers = with_experts(layers, experts, lambda i: sparse[i] == SPARSE)
    if blocks is None:
        ctx.weights.ignore([UNREAD], WHY_UNREAD)
    else:
        mixers = ("blocks" if kind == CHOOSING else "attention" for kind in types)
        layers = tuple(replace(layer, mixer=m) for layer, m in zip(layers, mixers, strict=True))
    for pattern, name in RENAMED.items():
        ctx.weights.rename(pattern, name)
    ctx.weights.ignore([r"^(model\.)?mtp\."], "layers that predict further tokens")
    spec = decoder_spec(
        config,
        layers,
        intermediate_size=config.size("dense_intermediate_size"),
        norm_offset=1.0,
        gate_limits=gates,
        blocks=blocks,
        names=names,
    )
    own = [replace(layers[-1], mixture=experts, mixer="attention" if blocks is None else "blocks")]
    further = count(config, FURTHER_COUNT) if config.get(FURTHER_COUNT) else 0
    return add_further(DenseDecoder(spec, ctx), spec, ctx, further, FURTHER, FURTHER_LAYER, own)


def _respelled(config: ModelConfig) -> ModelConfig:
    """Return the configuration by the keys that transformers writes."""
    values: dict[str, Any] = dict(config.values)
    chosen = dict(mapping(config, "sparse_attention_config"))
    values |= {SPELLINGS[key]: value for key, value in chosen.items() if key in SPELLINGS}
    for key, flags, words in (
        ("layer_types", chosen.get("sparse_attention_freq"), (FULL, CHOOSING)),
        ("mlp_layer_types", values.get("moe_layer_freq"), (DENSE, SPARSE)),
    ):
        if values.get(key) is None and isinstance(flags, list):
            values[key] = [words[bool(flag)] for flag in flags]
    # Gates are clamped as the other keys say, whatever name a file has for that.
    return replace(config, values={**values, "hidden_act": "silu"})


def _sparse(config: ModelConfig) -> list[str]:
    """Return which layers have experts: all, where the file does not say it."""
    key, count = "mlp_layer_types", config.size("num_hidden_layers")
    types = config.get(key) or [SPARSE] * count
    known = isinstance(types, list) and all(kind in (DENSE, SPARSE) for kind in types)
    if not known or len(types) != count:
        raise refuse(config, key, f"needs {DENSE} or {SPARSE} for each of {count} layers")
    return types


def _blocks(config: ModelConfig, ctx: BuildContext, rope_dim: int) -> BlockIndexerSpec | None:
    """Say how blocks are chosen; None where all of the longest text is read."""
    group, top_k = config.size("index_block_size"), config.size("index_topk_blocks")
    if ctx.max_model_len <= top_k * group:
        return None
    local = config.size("index_local_blocks")
    sizes = (config.size("index_n_heads"), config.size("index_head_dim"), rope_dim)
    types = (ctx.dtype, ctx.kv_dtype, ctx.block_size)
    index = BlockIndexerSpec(*sizes, group, top_k, local, *types)
    kv_heads = config.size("num_key_value_heads")
    if index.num_heads != kv_heads:
        raise refuse(config, "index_n_heads", f"has a choice for each of {kv_heads} key heads")
    if index.head_dim < rope_dim:
        raise refuse(config, "index_head_dim", f"rotates {rope_dim} channels of it")
    if local > top_k:
        raise refuse(config, "index_local_blocks", f"reads {top_k} blocks at most")
    return index
