"""The table of slots: one record for each question that core asks; every list follows from it.

A plugin adds records of its own through hook `hotshoe_slots`. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotshoe.errors import PluginError
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins.manager import blaming_plugin
from hotshoe.slots import results
from hotshoe.slots.base import Slot
from hotshoe.slots.block_choice import BlockIndexerSpec
from hotshoe.slots.compressed import CompressedAttentionSpec, CompressSpec
from hotshoe.slots.hyper import HyperConnectionSpec
from hotshoe.slots.layer_specs import (
    DecoderLayerSpec,
    ModelStepSpec,
    layer_features,
    step_features,
)
from hotshoe.slots.packed import PackedAttentionSpec
from hotshoe.slots.relative import RelativeAttentionSpec
from hotshoe.slots.results import Result
from hotshoe.slots.sizes import linear_bytes
from hotshoe.slots.specs import (
    AddNormSpec,
    AttentionSpec,
    CommunicatorSpec,
    EmbeddingSpec,
    GatedActivationSpec,
    GatedMlpSpec,
    GraphSpec,
    IndexerSpec,
    LayerNormSpec,
    LinearSpec,
    LoraSpec,
    MlaAttentionSpec,
    MoeSpec,
    NormSpec,
    RotaryAndCacheSpec,
    SampleSpec,
    SparseMlaSpec,
    TransferSpec,
)
from hotshoe.slots.state_specs import (
    GatedDeltaSpec,
    RgLruSpec,
    SelectiveScanSpec,
    ShortConvSpec,
    StateSpaceSpec,
)
from hotshoe.slots.step_bytes import (
    attended_bytes,
    conv_bytes,
    entry_bytes,
    key_bytes,
    latent_bytes,
    layer_bytes,
    packed_bytes,
    row_of,
    size_of,
    state_bytes,
    stream_bytes,
)
from hotshoe.slots.trees import TreeAttentionSpec

if TYPE_CHECKING:
    from hotshoe.plugins import PluginManager

HOOK = "hotshoe_slots"
_REFERENCE = "hotshoe.slots.reference"
_JUDGE = f"{_REFERENCE}.accepts:supports"
_ALONE = f"{_REFERENCE}.alone"


#: What a layer is composed of where nobody serves it whole.
_LAYER = (
    "rms_norm",
    "add_rms_norm",
    "linear",
    "rotary_and_cache",
    "attention",
    "gated_mlp",
    "gated_activation",
)

SLOTS: dict[str, Slot] = {
    slot.name: slot
    for slot in (
        Slot(
            "attention",
            AttentionSpec,
            f"{_REFERENCE}.attention:Attention",
            "paged causal attention of mixed prefill and decode batches",
            reference_supports=_JUDGE,
            results=results.of_attention,
            step_bytes=attended_bytes,
            needs=("layout", "prepare"),
            reference_waits=True,
            contract=2,
            alone=f"{_ALONE}:AttentionAlone",
        ),
        Slot(
            "tree_attention",
            TreeAttentionSpec,
            f"{_REFERENCE}.tree_attention:TreeAttention",
            "paged attention of steps whose last tokens are nodes of trees of drafts",
            reference_supports=_JUDGE,
            results=lambda s, n: results.of_attention(s.attention, n),
            step_bytes=lambda s, n: attended_bytes(s.attention, n),
            reference_waits=True,
        ),
        Slot(
            "relative_attention",
            RelativeAttentionSpec,
            f"{_REFERENCE}.relative:RelativeAttention",
            "paged causal attention whose scores have logits of relative positions",
            reference_supports=_JUDGE,
            results=lambda s, n: results.of_attention(s.attention, n),
            step_bytes=lambda s, n: attended_bytes(s.attention, n),
            needs=("layout", "prepare"),
            reference_waits=True,
        ),
        Slot(
            "packed_attention",
            PackedAttentionSpec,
            f"{_REFERENCE}.packed:PackedAttention",
            "rotary embedding, then attention in both directions among the tokens of a request",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.num_heads * s.head_dim), s.dtype),),
            step_bytes=packed_bytes,
            needs=("prepare",),
            reference_waits=True,
            contract=2,
            alone=f"{_ALONE}:same",
        ),
        Slot(
            "rotary_and_cache",
            RotaryAndCacheSpec,
            f"{_REFERENCE}.rotary:RotaryAndCache",
            "q/k norm, rotary embedding, write of k and v into the cache",
            reference_supports=_JUDGE,
            results=results.of_queries,
            step_bytes=lambda s, n: 2 * row_of(s) * size_of(s),
            alone=f"{_ALONE}:written",
        ),
        Slot(
            "mla_attention",
            MlaAttentionSpec,
            f"{_REFERENCE}.mla_attention:MlaAttention",
            "multi-head latent attention over a paged cache, and the write of its rows",
            reference_supports=_JUDGE,
            results=results.of_latent_attention,
            step_bytes=latent_bytes,
            matrices=lambda s: (s.up,),
            needs=("load", "state", "nbytes", "prepare", "write"),
            reference_waits=True,
            contract=2,
        ),
        Slot(
            "indexer",
            IndexerSpec,
            f"{_REFERENCE}.indexer:Indexer",
            "choice of the cached tokens that a query attends to, and the write of their keys",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.top_k), "int32"),),
            step_bytes=key_bytes,
            needs=("prepare", "write"),
            reference_waits=True,
            contract=2,
        ),
        Slot(
            "block_indexer",
            BlockIndexerSpec,
            f"{_REFERENCE}.block_indexer:BlockIndexer",
            "choice of the blocks of tokens that each head attends to, and the write of their keys",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.num_heads, s.top_k), "int32"),),
            step_bytes=key_bytes,
            needs=("prepare", "write"),
            reference_waits=True,
            contract=2,
        ),
        Slot(
            "sparse_mla_attention",
            SparseMlaSpec,
            f"{_REFERENCE}.sparse_mla_attention:SparseMlaAttention",
            "multi-head latent attention over chosen rows of a paged cache, and the write of rows",
            reference_supports=_JUDGE,
            results=results.of_sparse_attention,
            step_bytes=lambda s, n: latent_bytes(s.attention, min(n, s.top_k)),
            matrices=lambda s: (s.attention.up,),
            needs=("load", "state", "nbytes", "prepare", "write"),
            contract=2,
        ),
        Slot(
            "compress",
            CompressSpec,
            f"{_REFERENCE}.compressed:Compress",
            "entries of a cache, made of the tokens of a group each",
            reference_supports=_JUDGE,
            results=lambda s, n: (),
            step_bytes=lambda s, n: s.reach * s.token_row.nbytes // s.group,
            needs=("write", "turn"),
            contract=2,
        ),
        Slot(
            "compressed_attention",
            CompressedAttentionSpec,
            f"{_REFERENCE}.compressed:CompressedAttention",
            "attention to a window of tokens and to entries for several tokens, and rows' write",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.num_heads * s.head_dim), s.dtype),),
            step_bytes=entry_bytes,
            needs=("prepare", "write"),
            contract=2,
        ),
        Slot(
            "state_space",
            StateSpaceSpec,
            f"{_REFERENCE}.state_space:StateSpace",
            "causal convolution, Mamba-2 scan, gate and norm over cached states",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.inner_size), s.dtype),),
            step_bytes=lambda s, n: 2 * state_bytes(s, s.state_size),
            needs=("prepare",),
            reference_waits=True,
            contract=2,
        ),
        Slot(
            "selective_scan",
            SelectiveScanSpec,
            f"{_REFERENCE}.selective_scan:SelectiveScan",
            "causal convolution, Mamba-1 scan and gate over cached states",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.inner_size), s.dtype),),
            step_bytes=lambda s, n: 2 * state_bytes(s, s.state_size),
            needs=("prepare",),
            reference_waits=True,
            contract=2,
        ),
        Slot(
            "rg_lru",
            RgLruSpec,
            f"{_REFERENCE}.rg_lru:RgLru",
            "causal convolution, gated linear recurrence and gate over cached states",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.inner_size), s.dtype),),
            step_bytes=lambda s, n: 2 * state_bytes(s, 1),
            needs=("prepare",),
            reference_waits=True,
            contract=2,
        ),
        Slot(
            "short_conv",
            ShortConvSpec,
            f"{_REFERENCE}.short_conv:ShortConv",
            "causal convolution between two gates over cached inputs",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.inner_size), s.dtype),),
            step_bytes=lambda s, n: 2 * conv_bytes(s),
            needs=("prepare",),
            reference_waits=True,
            contract=2,
        ),
        Slot(
            "gated_delta",
            GatedDeltaSpec,
            f"{_REFERENCE}.gated_delta:GatedDelta",
            "causal convolution, gated delta rule, norm and gate over cached states",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.inner_size), s.dtype),),
            step_bytes=lambda s, n: 2 * state_bytes(s, s.key_dim),
            needs=("prepare",),
            reference_waits=True,
            contract=2,
        ),
        Slot(
            "linear",
            LinearSpec,
            f"{_REFERENCE}.linear:Linear",
            "matrix product with a weight prepared once, plain or quantized",
            reference_supports=_JUDGE,
            results=results.of_linear,
            step_bytes=lambda s, n: linear_bytes(s),
            matrices=lambda s: (s,),
            needs=("load", "nbytes"),
            alone=f"{_ALONE}:first",
        ),
        Slot(
            "rms_norm",
            NormSpec,
            f"{_REFERENCE}.norm:build_norm",
            "RMS norm",
            reference_supports=_JUDGE,
            results=results.of_norm,
            step_bytes=lambda s, n: 3 * s.hidden_size * size_of(s),
            alone=f"{_ALONE}:first",
        ),
        Slot(
            "add_rms_norm",
            AddNormSpec,
            f"{_REFERENCE}.norm:build_add_norm",
            "residual addition and RMS norm",
            reference_supports=_JUDGE,
            results=results.of_add_norm,
            step_bytes=lambda s, n: 5 * s.hidden_size * size_of(s),
            alone=f"{_ALONE}:first_two",
        ),
        Slot(
            "layer_norm",
            LayerNormSpec,
            f"{_REFERENCE}.norm:build_layer_norm",
            "layer norm: mean and variance",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.hidden_size), s.dtype),),
            step_bytes=lambda s, n: 3 * s.hidden_size * size_of(s),
            contract=2,
            alone=f"{_ALONE}:first",
        ),
        Slot(
            "hyper_connection",
            HyperConnectionSpec,
            f"{_REFERENCE}.hyper:HyperConnection",
            "residual streams: how the output of a block joins them, and what the next one takes",
            reference_supports=_JUDGE,
            results=lambda s, n: (
                Result((n, s.count, s.hidden_size), s.dtype),
                Result((n, s.hidden_size), s.dtype),
                Result((n, s.gates), "float32"),
            ),
            step_bytes=stream_bytes,
            contract=2,
        ),
        Slot(
            "gated_activation",
            GatedActivationSpec,
            f"{_REFERENCE}.activation:build",
            "activation of one half times the other half",
            reference_supports=_JUDGE,
            results=results.of_activation,
            step_bytes=lambda s, n: 3 * s.size * size_of(s),
            alone=f"{_ALONE}:first",
        ),
        Slot(
            "gated_mlp",
            GatedMlpSpec,
            f"{_REFERENCE}.mlp:GatedMlp",
            "a whole MLP block: two matrix products and the activation between them",
            reference_supports=_JUDGE,
            results=results.of_block,
            composed_of=("linear", "gated_activation"),
            step_bytes=lambda s, n: linear_bytes(s.gate_up) + linear_bytes(s.down),
            matrices=lambda s: (s.gate_up, s.down),
            needs=("load_gate_up", "load_down", "nbytes"),
        ),
        Slot(
            "decoder_layer",
            DecoderLayerSpec,
            f"{_REFERENCE}.decoder_layer:DecoderLayer",
            "a whole decoder layer: norms, attention with its projections, MLP, residual additions",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.hidden_size), s.dtype),),
            composed_of=_LAYER,
            step_bytes=layer_bytes,
            matrices=lambda s: tuple(s.matrices.values()),
            needs=("layout", "load", "bind", "prepare", "product", "state", "nbytes"),
            reference_waits=True,
            features=layer_features,
        ),
        Slot(
            "model_step",
            ModelStepSpec,
            f"{_REFERENCE}.decoder_layer:ModelStep",
            "all decoder layers of a stage in one call",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.layers[0][0].hidden_size), s.dtype),),
            composed_of=("decoder_layer", *_LAYER),
            step_bytes=lambda s, n: sum(layer_bytes(layer, n) for layer in s.each()),
            matrices=lambda s: tuple(m for one in s.each() for m in one.matrices.values()),
            reference_waits=True,
            features=step_features,
        ),
        Slot(
            "moe",
            MoeSpec,
            f"{_REFERENCE}.moe:Moe",
            "a mixture of experts: choice, matrix products of the chosen, weighted sum",
            reference_supports=_JUDGE,
            results=results.of_block,
            step_bytes=lambda s, n: s.top_k * (linear_bytes(s.gate_up) + linear_bytes(s.down)),
            matrices=lambda s: (s.gate_up, s.down) * s.places,
            needs=("load_gate_up", "load_down", "nbytes"),
            reference_waits=True,
            alone=f"{_ALONE}:MoeAlone",
        ),
        Slot(
            "embedding",
            EmbeddingSpec,
            f"{_REFERENCE}.embedding:build",
            "embedding gather",
            reference_supports=_JUDGE,
            results=lambda s, n: (Result((n, s.size), s.dtype),),
            step_bytes=lambda s, n: 2 * s.size * size_of(s),
            table_bytes=lambda s: s.num_embeddings * s.size * size_of(s),
            alone=f"{_ALONE}:same",
        ),
        Slot(
            "lora",
            LoraSpec,
            f"{_REFERENCE}.lora:build",
            "low-rank adapters, added to a matrix product's result",
            reference_supports=_JUDGE,
            results=lambda s, n: (),
            step_bytes=lambda s, n: s.rank * (s.in_features + s.out_features) * size_of(s),
        ),
        Slot(
            "sample",
            SampleSpec,
            f"{_REFERENCE}.sampling:build",
            "choice of the next token",
            results=lambda s, n: (Result((n,), "int64"),),
            step_bytes=lambda s, n: 4 * s.vocab_size,
            outside=True,
            alone=f"{_ALONE}:sampled",
        ),
        Slot(
            "transfer",
            TransferSpec,
            f"{_REFERENCE}.transfer:Transfer",
            "copies between host and an asynchronous device",
            outside=True,
            alone=f"{_ALONE}:same",
        ),
        Slot(
            "graph",
            GraphSpec,
            f"{_REFERENCE}.graph:Graph",
            "recording and replay of a decode step",
            outside=True,
            alone=f"{_ALONE}:same",
        ),
        Slot(
            "communicator",
            CommunicatorSpec,
            f"{_REFERENCE}.communicator:Communicator",
            "exchange of tensors among the processes of one engine",
            reference_waits=True,
        ),
    )
}


def all_slots(plugins: PluginManager) -> Mapping[str, Slot]:
    """Return core's slots and those of the installed plugins.

    Raises:
        PluginError: A plugin brings something else than a slot, or one that core has.
    """
    found = dict(SLOTS)
    for name, reference in plugins.mapping(HOOK).items():
        owner = plugins.owner(HOOK, name).name
        if name in SLOTS:
            raise PluginError(f"plugin {owner} brings slot {name}, which core has")
        with blaming_plugin(plugins, HOOK, name):
            slot = resolve_lazy(reference)
        if not isinstance(slot, Slot) or slot.name != name:
            raise PluginError(f"plugin {owner} brings {slot!r}, which is no Slot named {name}")
        found[name] = slot
    return found
