"""What config.json would hold of models whose layers differ, from the metadata of their GGUF files.

Source: see `hybrids`.
"""

from __future__ import annotations

from typing import Any

from hotshoe_models.gguf import dense, mixtures
from hotshoe_models.gguf.dense import LAYER_TYPES, Values
from hotshoe_models.gguf.family import Rows
from hotshoe_models.gguf.hybrid_names import QWEN_FURTHER_NAMES
from hotshoe_models.gguf.hybrids import own_layers
from hotshoe_models.gguf.metadata import Metadata

KV, HEADS, MLP = "attention.head_count_kv", "attention.head_count", "feed_forward_length"
#: Types of MLPs, by whether they have experts.
MLP_TYPES = {False: "dense", True: "sparse"}
#: Fields of families.
DECI: dict[str, Any] = {"mixed": True, "pairs": True}
LAGUNA: dict[str, Any] = {"mixed": True}
STEP: dict[str, Any] = {"mixed": True, "norm_offset": 1.0}
#: Types of MiniMax M3's layers, by whether they choose blocks of tokens.
BLOCK_TYPES = {False: LAYER_TYPES[False], True: "minimax_m3_sparse"}
#: What configurations and files call sizes of such a choice.
INDEXER = {
    "index_n_heads": "head_count",
    "index_head_dim": "key_length",
    "index_topk_blocks": "top_k",
    "index_block_size": "block_size",
    "index_local_blocks": "local_blocks",
}
#: Of Laguna: so many layers have one without a window.
LAGUNA_PERIOD = 4
#: Of the first files of MiMo V2, which leave it out.
VALUE_SCALE = 0.707


def glm_dsa(meta: Metadata) -> Values:
    """Layers without an indexer take the choice of the last one before them that has one."""
    further, layers = meta.integer("nextn_predict_layers", 0), own_layers(meta)
    own = [f"blk.{i}.indexer.attn_k.weight" in meta.tensors for i in range(layers)]
    return {
        **mixtures.latents(meta),
        **mixtures.routed(meta),
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": further,
        "index_n_heads": meta.integer("attention.indexer.head_count"),
        "index_head_dim": meta.integer("attention.indexer.key_length"),
        "index_topk": meta.integer("attention.indexer.top_k"),
        "indexer_types": ["full" if each else "shared" for each in own],
    }


def deepseek32(meta: Metadata) -> Values:
    """Return keys of DeepSeek V3.2, in which each layer has an indexer."""
    return {key: value for key, value in glm_dsa(meta).items() if key != "indexer_types"}


def _slides(meta: Metadata) -> list[bool]:
    """Return, for each layer, whether it attends within a window.

    Raises:
        CheckpointError: Layers are not told.
    """
    key, layers = "attention.sliding_window_pattern", meta.integer("block_count")
    found = meta.get(key)
    if not isinstance(found, list) or len(found) != layers:
        raise meta.refuse(f"{meta.arch}.{key}", f"but must say it of {layers} layers")
    return [bool(slide) for slide in found]


def _by_kind(meta: Metadata, key: str, slides: list[bool]) -> tuple[int, int]:
    """Return a size of layers without a window, and of those with one.

    Raises:
        CheckpointError: Layers of a kind differ.
    """
    sizes = list(zip(meta.sizes(key), slides, strict=True))
    full, sliding = ({size for size, slide in sizes if slide == kind} for kind in (False, True))
    if max(len(full), len(sliding)) > 1 or 0 in full | sliding:
        raise meta.refuse(f"{meta.arch}.{key}", "but must be one for each kind of layer")
    return min(full or sliding), min(sliding or full)


def _sparse(meta: Metadata, layers: int) -> list[str]:
    """Return which layers have experts: those with a router."""
    routers = (f"blk.{i}.ffn_gate_inp.weight" in meta.tensors for i in range(layers))
    return [MLP_TYPES[found] for found in routers]


def _rotations(meta: Metadata, full: Values) -> dict[str, Values]:
    """Return the rotation of each kind of layer, of which those with a window have a base."""
    own = {"rope_type": "default"}
    own["rope_theta"] = meta.number("rope.freq_base_swa", full["rope_theta"])
    return {LAYER_TYPES[False]: full, LAYER_TYPES[True]: own}


def mimo_sizes(meta: Metadata) -> list[Rows]:
    """Return the rows of each layer's q, k and v; later files have these in one matrix."""
    heads, keys = meta.integer(HEADS), dense.head_size(meta)
    values = meta.integer("attention.value_length")
    return [(heads * keys, kv * keys, kv * values) for kv in meta.sizes(KV)]


MIMO: dict[str, Any] = {
    "mixed": True,
    "narrow": True,
    "further": QWEN_FURTHER_NAMES,
    "parted": mimo_sizes,
}


def mimo2(meta: Metadata) -> Values:
    """Layers that predict further tokens come last, and are not read.

    A file's window is that of the published configuration, which leaves out the query's own token.

    Raises:
        CheckpointError: A key is missing or malformed.
    """
    slides, layers = _slides(meta), own_layers(meta)
    full, sliding = _by_kind(meta, KV, slides)
    rope = dense.rotation_of(meta, dense.head_size(meta))["rope_parameters"]
    both = _rotations(meta, rope)
    shared = "partial_rotary_factor"
    if shared in rope:
        both[LAYER_TYPES[True]][shared] = rope[shared]
    kinds = zip(slides[:layers], range(layers), strict=True)
    sinks = {slide: f"blk.{i}.attn_sinks.weight" in meta.tensors for slide, i in kinds}
    return {
        **mixtures.routed(meta),
        "norm_topk_prob": meta.flag("mimo2.expert_weights_norm", True),
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": 0,
        "layer_types": [LAYER_TYPES[slide] for slide in slides[:layers]],
        "mlp_layer_types": _sparse(meta, layers),
        "num_key_value_heads": full,
        "swa_num_key_value_heads": sliding,
        "v_head_dim": meta.integer("attention.value_length"),
        "sliding_window": meta.integer("attention.sliding_window") + 1,
        "add_full_attention_sink_bias": sinks.get(False, False),
        "add_swa_attention_sink_bias": sinks.get(True, False),
        "attention_value_scale": meta.number("attention.value_scale", VALUE_SCALE),
        "rope_parameters": both,
    }


def step35(meta: Metadata) -> Values:
    """Layers without a window turn half of each head, and the others all.

    Raises:
        CheckpointError: A key is missing or malformed, or weights of experts do not sum to 1.
    """
    slides, layers = _slides(meta), own_layers(meta)
    norms = "step35.expert_weights_norm"
    if not meta.flag(norms, True):
        raise meta.refuse(norms, "but is read as true")
    (heads, sliding), (kv, _) = (_by_kind(meta, key, slides) for key in (HEADS, KV))
    rope = dense.rotation_of(meta, dense.head_size(meta))["rope_parameters"]
    pairs = dense.head_size(meta) // 4
    for key in ("short_factor", "long_factor"):
        if key in rope:  # of which files have as many as whole heads have pairs
            rope[key] = rope[key][:pairs]
    routed = mixtures.routed(meta)
    limits = {
        f"swiglu_limits{ours}": meta.get(f"swiglu_clamp_{part}")
        for part, ours in (("exp", ""), ("shexp", "_shared"))
    }
    return {
        **routed,
        **limits,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": meta.integer("nextn_predict_layers", 0),
        "layer_types": [LAYER_TYPES[slide] for slide in slides],
        "mlp_layer_types": _sparse(meta, len(slides)),
        "num_attention_heads": heads,
        "num_sliding_attention_heads": sliding,
        "num_key_value_heads": kv,
        "n_routed_experts": routed["num_experts"],
        "share_expert_dim": meta.integer("expert_shared_feed_forward_length"),
        "moe_router_scaling_factor": routed["routed_scaling_factor"],
        "sliding_window": meta.integer("attention.sliding_window"),
        "rope_parameters": _rotations(meta, {**rope, "partial_rotary_factor": 0.5}),
    }


def mellum(meta: Metadata) -> Values:
    """Layers without a window turn by a stretched base, and the others by one of their own."""
    window, layers = meta.integer("attention.sliding_window", 0), meta.integer("block_count")
    slides = _slides(meta) if window else [False] * layers
    rope = dense.rotation_of(meta, dense.head_size(meta))["rope_parameters"]
    return {
        **mixtures.qwen3_moe(meta),
        "sliding_window": window or None,
        "layer_types": [LAYER_TYPES[slide] for slide in slides],
        "mlp_layer_types": _sparse(meta, layers),
        "rope_parameters": _rotations(meta, rope),
    }


def laguna(meta: Metadata) -> Values:
    """Layers differ in heads. Of four layers, the first has no window unless a list says it.

    Raises:
        CheckpointError: A key is missing or malformed, or gates have another width.
    """
    window, heads = meta.integer("attention.sliding_window", 0), meta.sizes(HEADS)
    slides = [window > 0 and i % LAGUNA_PERIOD > 0 for i in range(len(heads))]
    if window and isinstance(meta.get("attention.sliding_window_pattern"), list):
        slides = _slides(meta)
    head_dim = dense.head_size(meta)
    rope = dense.rotation_of(meta, head_dim)["rope_parameters"]
    rope.setdefault("partial_rotary_factor", 1.0)
    both = _rotations(meta, rope)
    swa = meta.integer("rope.dimension_count_swa", head_dim)
    both[LAYER_TYPES[True]]["partial_rotary_factor"] = swa / head_dim
    gates = meta.shape("blk.0.attn_gate.weight")[0]
    return {
        **mixtures.routed(meta),
        "num_attention_heads_per_layer": heads,
        "gating": "per-head" if gates == heads[0] else "per-element",
        "layer_types": [LAYER_TYPES[slide] for slide in slides],
        "mlp_layer_types": _sparse(meta, len(heads)),
        "sliding_window": window or None,
        "shared_expert_intermediate_size": meta.integer("expert_shared_feed_forward_length"),
        "moe_routed_scaling_factor": meta.number("expert_weights_scale", 1.0),
        "rope_parameters": both,
    }


def hy_v3(meta: Metadata) -> Values:
    """Layers that predict further tokens come last, or lie in a file of their own."""
    layers, inner = own_layers(meta), meta.integer("expert_feed_forward_length")
    shared = meta.integer("expert_shared_feed_forward_length", inner)
    if shared % inner:
        key = "hy_v3.expert_shared_feed_forward_length"
        raise meta.refuse(key, f"but must be a multiple of {inner}")
    there = f"blk.{layers}.nextn.eh_proj.weight" in meta.tensors
    further = meta.integer("nextn_predict_layers", 0) if there else 0
    return {
        **mixtures.routed(meta),
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": further,
        "mlp_layer_types": _sparse(meta, layers),
        "num_shared_experts": shared // inner,
        "router_scaling_factor": meta.number("expert_weights_scale", 1.0),
    }


def minimax3(meta: Metadata) -> Values:
    """Layers with an indexer choose blocks. Files leave out where gates are clamped, as all models
    do it alike."""
    layers, sparse = meta.integer("block_count"), _sparse(meta, meta.integer("block_count"))
    chosen = [f"blk.{i}.indexer.q_proj.weight" in meta.tensors for i in range(layers)]
    inner, rows = meta.integer("expert_feed_forward_length"), {}
    for part, kind in (("ffn_up", False), ("ffn_up_shexp", True)):  # of the first layer with it
        first = next((i for i, found in enumerate(sparse) if found == MLP_TYPES[kind]), None)
        rows[part] = inner if first is None else meta.shape(f"blk.{first}.{part}.weight")[0]
    indexer: Values = {}
    if any(chosen):
        indexer = {ours: meta.integer(f"attention.indexer.{key}") for ours, key in INDEXER.items()}
    return {
        **mixtures.routed(meta),
        **indexer,
        "intermediate_size": inner,
        "dense_intermediate_size": rows["ffn_up"],
        "shared_intermediate_size": rows["ffn_up_shexp"],
        "rotary_dim": meta.integer("rope.dimension_count", dense.head_size(meta)),
        "layer_types": [BLOCK_TYPES[each] for each in chosen],
        "mlp_layer_types": sparse,
        "experts_by_name": True,
    }


def deci(meta: Metadata) -> Values:
    """Layers without heads do not attend, and those without channels have no MLP.

    Raises:
        CheckpointError: A key is missing or malformed, or a layer has a matrix for attention.
    """
    heads, shared, inner = (meta.sizes(key) for key in (HEADS, KV, MLP))
    blocks: list[Values] = []
    for count, kv, size in zip(heads, shared, inner, strict=True):
        if count and (not kv or count % kv or count != max(heads)):
            raise meta.refuse(f"deci.{KV}", "but must divide the heads of each layer that attends")
        attention = {"n_heads_in_group": count // kv} if count else {"no_op": True}
        mlp = {"intermediate_size": size} if size else {"no_op": True}
        blocks.append({"attention": attention, "ffn": mlp})
    return {"block_configs": blocks}
