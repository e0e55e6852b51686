"""What a dense decoder is, as data: sizes, options, and where its weights lie in a checkpoint.

Families fill these records from config.json; `hotshoe_models.decoder` builds from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hotshoe.layers import DeltaNames, Mixture, Rotation, Temperature, WeightFormat
from hotshoe.slots import (
    Alibi,
    BlockIndexerSpec,
    GatedDeltaSpec,
    RgLruSpec,
    SelectiveScanSpec,
    ShortConvSpec,
    StateSpaceSpec,
)
from hotshoe_models.stream_specs import HyperSpec, PerLayerSpec, StreamSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Checkpoint prefixes. Those after `layer` are relative to a layer's own prefix.

    Attributes:
        layer: Prefix of a layer, with {} for its index.
        positions: A vector for each position, added to embeddings; None for none.
        embedding_norm: The norm of embeddings, in front of the first layer; None for none.
        qkv: One name per matrix, or one for the three stacked.
        grouped_qkv: The stacked rows are, for each kv head: its queries, its key, its value.
        qkv_shards: They are, for each of so many shares of the heads: queries, values, keys.
        gate: Of `gated_attention`, the matrix of gates; None where rows of queries hold them.
        head_gates: That matrix has one gate for each head, not one for each channel.
        gate_up: One name per matrix, or one for both stacked; of a plain MLP its first matrix.
        activation: Of an activation that has weights.
        qk_norm: Norms of each head's q and k before rotation; None for none.
        wide_qk_norm: They are norms of all heads' q and k together.
        late_qk_norm: They come behind rotation.
        layer_qk_norm: They are layer norms: "shared" by all heads, with a bias, or with "own"
            weights of each head, without; the names of tensors that hold one head's have {} for
            its index. "own_rms" for RMS norms with such weights; None for those that heads share.
        sinks: Logits, one a head, that join the softmax's denominator; None for none.
        input_norm: The norm in front of attention; None for none, as in OLMo 2.
        mlp_norm: The norm after attention's residual addition; None for none. In a parallel decoder
            the MLP's own norm of the residual; None if it takes what attention takes.
        post_attention_norm, post_mlp_norm: Of a block's output, before it joins the residual.
        bare: Checkpoints that were saved without their output matrix have names that lack a prefix:
            a regular expression of where it belongs, and the prefix.
        unused: Regular expressions of tensors that some checkpoints hold and nobody needs.
    """

    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    lm_head: str = "lm_head"
    layer: str = "model.layers.{}."
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    positions: str | None = None
    embedding_norm: str | None = None
    grouped_qkv: bool = False
    qkv_shards: int = 0
    gate: str | None = None
    head_gates: bool = False
    qk_norm: tuple[str, str] | None = None
    wide_qk_norm: bool = False
    late_qk_norm: bool = False
    layer_qk_norm: str | None = None
    sinks: str | None = None
    o: str = "self_attn.o_proj"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    activation: str = "mlp.act_fn"
    input_norm: str | None = "input_layernorm"
    mlp_norm: str | None = "post_attention_layernorm"
    post_attention_norm: str | None = None
    post_mlp_norm: str | None = None
    bare: tuple[str, str] = (r"^(?=(embed_tokens|layers|norm)\.)", "model.")
    unused: tuple[str, ...] = (r"\.rotary_emb\.inv_freq$",)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """In what layers differ from each other.

    Attributes:
        rotation: None leaves q and k as they are.
        window: A query sees this many tokens, itself included; None sees all.
        sinks: Logits join the softmax's denominator, where `WeightNames.sinks` names them.
        chunk: A query sees its own chunk of this many tokens, up to itself; None for no chunks.
        mixer: What looks at other tokens, a name in `hotshoe_models.shared.KINDS`.
        mixture: Experts in the place of the MLP; None for none.
        adjugates: Small experts beside these, one for each group of them; None for none.
        mlp: There is an MLP behind the mixer.
        unit_qk: Each head's q and k are normed, without weights.
        temperature: Queries grow with their position; None for not at all.
        shares: The layer before this one whose cache it reads; None for its own.
        keys_as_values: Values are the keys, before norm and rotation; there is no matrix for them.
        o_bias, num_heads, head_dim, num_kv_heads, intermediate_size: None for the decoder's.
        names, latent: Of this layer, where they are others than the decoder's; else None.
        qkv_inputs: Channels that q, k and v are made of; None for the hidden size.
        sparsity: Share of the channels between MLP matrices that a threshold closes.
        compression: Of mixer "compressed": entries that it reads beside its window; None for none.
    """

    rotation: Rotation | None
    window: int | None = None
    sinks: bool = True
    chunk: int | None = None
    mixer: str = "attention"
    mixture: Mixture | None = None
    adjugates: Mixture | None = None
    mlp: bool = True
    unit_qk: bool = False
    temperature: Temperature | None = None
    shares: int | None = None
    keys_as_values: bool = False
    o_bias: bool | None = None
    num_heads: int | None = None
    head_dim: int | None = None
    num_kv_heads: int | None = None
    intermediate_size: int | None = None
    names: WeightNames | None = None
    latent: LatentSpec | None = None
    qkv_inputs: int | None = None
    sparsity: float = 0.0
    compression: Compression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBlock:
    """A Mamba-2 block with its projections, for mixers "state" and "attention+state".

    Attributes:
        space: What lies between the projections.
        name: Prefix within a layer.
        in_bias, conv_bias, out_bias: The projections and the convolution have biases.
        scales: Factors on z, x, B, C and dt; None for none.
        attention_in, attention_out, state_out: Beside attention: factors on what attention takes,
            and on what each of the two puts out.
    """

    space: StateSpaceSpec
    name: str = "mamba"
    in_bias: bool = False
    conv_bias: bool = True
    out_bias: bool = False
    scales: tuple[float, float, float, float, float] | None = None
    attention_in: float = 1.0
    attention_out: float = 1.0
    state_out: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveBlock:
    """A Mamba-1 block with its projections, for mixer "selective".

    Attributes:
        scan: What lies between the projections.
        name: Prefix within a layer.
        norms: Names within the block; see `hotshoe.layers.SelectiveScan`.
        bias, conv_bias: The projections and the convolution have biases.
    """

    scan: SelectiveScanSpec
    name: str
    norms: tuple[str, ...] = ()
    bias: bool = False
    conv_bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvBlock:
    """A short convolution with its projections, for mixer "conv".

    Attributes:
        conv: What lies between the projections.
        name: Prefix within a layer.
        bias: The projections and the convolution have biases.
    """

    conv: ShortConvSpec
    name: str = "conv"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBlock:
    """A matrix memory with its projections, for mixer "memory"; `head_dim` is that of values.

    Attributes:
        key_dim: Channels of a head's q and k.
        gate_cap: Gates in front of their activations are cap * tanh(x / cap).
        name, projections, gates, norm, out: Prefix within a layer and names below it; of matrices
            of q, k, v and the gate behind, and of gates of input and forgetting, each one name, or
            one for each matrix.
    """

    key_dim: int
    gate_cap: float
    name: str
    projections: tuple[str, ...]
    gates: tuple[str, ...]
    norm: str
    out: str


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices of a gated-delta block that are multiplied together.

    Attributes:
        matrices: Name within the block, and the parts of the input that its rows are, in order; see
            `hotshoe.slots.GatedDeltaSpec.widths`.
        grouped: The rows are, for each key head: its part of each.
        before: A matrix without bias that makes `rank` channels of the hidden states first.
    """

    matrices: tuple[tuple[str, tuple[str, ...]], ...]
    grouped: bool = False
    before: str | None = None
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaBlock:
    """Linear attention with the gated delta rule and its projections, for mixer "delta".

    Attributes:
        delta, projections: What lies between the projections, and those to its input, in its order.
        name, out, names: Prefix within a layer, the projection behind, and the small weights.
        tiled: `out` takes the first head of values of every key, then the second.
    """

    delta: GatedDeltaSpec
    projections: tuple[Projection, ...]
    tiled: bool = False
    name: str = "linear_attn"
    out: str = "out_proj"
    names: DeltaNames = field(default_factory=DeltaNames)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpec:
    """The choice of tokens that latent attention reads; see `hotshoe.slots.IndexerSpec`.

    Attributes:
        norm_eps: Epsilon of layer norms.
        input_norm: Name within the indexer of the layer norm of the hidden states that q is made
            of; None where q is made of the latents that attention's q is made of.
        temperature: Name within it of learned factors on q; None for none.
        group: Tokens that are chosen together, by one key that their keys make; None where each
            is chosen by its own. See `hotshoe.layers.GroupIndexer`.
        last: The last channels of its heads and keys are rotated, not the first.
    """

    num_heads: int
    head_dim: int
    top_k: int
    interleaved: bool = False
    norm_eps: float = 1e-6
    group: int | None = None
    input_norm: str | None = None
    temperature: str | None = None
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """Latent attention, for layers whose mixer is "latent", "indexed" or "shared".

    See `hotshoe.slots.MlaAttentionSpec`. Layers that are "indexed" choose the tokens that they
    read, and "shared" ones read those that the last such layer before them has chosen.

    Attributes:
        q_dim: Size of the latents that q is made of; None makes q of the hidden states.
        latent_dim: Size of those that keys and values are made of.
        nope_dim, rope_dim: Channels of a head's q and k without and with rotation.
        v_dim: Channels of a head's values.
        name: Prefix within a layer.
        bias: The projections to latents have biases.
        up_scale: Factor on the normed latents that keys and values are made of.
        gate: Name within attention of a matrix that makes a gate for each head, whose sigmoid
            scales what the head puts out; None for none.
        channel_gates: It makes one for each channel.
        sinks: Name within attention of a logit of each head, beside chosen tokens; None for none.
        gated: The matrix that makes q takes latents normed and as they are, and its rows of a head
            are followed by those of a gate for each channel that the head puts out.
        norm_eps: Epsilon of both latents' norms.
        rope_norm: Name within attention of a norm of the rotated part of keys; None for none.
        temperature: Name within it of learned factors on q; None for none.
        scale: Factor on q·k; None for the decoder's.
        index: How tokens are chosen; None where all are read.
    """

    q_dim: int | None
    latent_dim: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    name: str = "self_attn"
    bias: bool = False
    up_scale: float = 1.0
    gate: str | None = None
    channel_gates: bool = False
    sinks: str | None = None
    gated: bool = False
    norm_eps: float = 1e-6
    rope_norm: str | None = None
    temperature: str | None = None
    scale: float | None = None
    index: IndexSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Entries that stand for a group of tokens each; see `hotshoe.slots.CompressSpec`.

    Attributes:
        group: Tokens of a group.
        overlap: An entry is made of the group before its own, too.
        index: How a query chooses entries; None where it reads all.
    """

    group: int
    overlap: bool
    index: IndexSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedSpec:
    """Attention to a window and to entries, for layers whose mixer is "compressed".

    See `hotshoe.slots.CompressedAttentionSpec`.

    Attributes:
        q_dim: Size of the latents that q is made of.
        rope_dim, window: Rotated channels of a head; tokens that a query sees, itself included.
        groups, group_dim: Heads go in so many groups, each of which makes so many channels, of
            which the output is made.
    """

    q_dim: int
    rope_dim: int
    window: int
    groups: int
    group_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder of attention, and of MLPs or mixtures of experts.

    Attributes:
        activation: "silu", "gelu", "gelu_tanh"; of plain MLPs "relu", "relu2", "xielu" as well.
        gated: MLPs have gates; plain ones are down(act(up(x))).
        norm: "rms", or "layer" for mean and variance, with a bias where `norm_bias` is true, and
            with neither weight nor bias where `norm_weight` is false, as "rms" may be, too.
        parallel: Attention and MLP start from the same residual, and both join it at once.
        table_size: Rows of the embedding's table, above `vocab_size`; None for as many.
        num_positions: Those with a vector of their own, behind `position_offset` more.
        transposed: The checkpoint has each matrix as [inputs, outputs].
        lm_head_bias: The output matrix has a bias.
        down_bias: The second matrix of an MLP has one; None for `mlp_bias`.
        norm_offset: The norms' effective weight is offset + weight (Gemma uses 1).
        final_norm_offset: That of the final norm; None for `norm_offset`.
        post_norm_eps: Epsilon of norms of a block's output; None for `norm_eps`.
        unit_embedding: The norm of embeddings has no weight.
        attention_scale: Factor on q·k.
        alibi: Scores fall with the distance, by slopes of all heads; None for not at all.
        attention_softcap, logits_softcap: cap * tanh(x / cap) on scores or logits; None for none.
        embedding_scale: Factor on embeddings.
        residual_scale: Factor on a block's output where it joins the residual.
        mlp_scale, gate_scale: Further factor on an MLP's output; on what its activation takes.
        gate_limits: Limit, alpha and shift of an MLP's gates, as `hotshoe.slots.MoeSpec` has them.
        gated_attention: Rows of each head's queries are followed by those of a gate, whose sigmoid
            scales what the head puts out; or `WeightNames.gate` has them in a matrix of its own.
        gate_activation: What opens gates of such a matrix: "sigmoid" or "softplus".
        value_norm: Each head's values are normed, without a weight.
        v_head_dim: Channels of a head's values, fewer than `head_dim`; None for as many.
        value_scale: Factor on values.
        q_dim: Of mixer "narrow": size of the normed latents that q is made of; else None.
        qkv_limit: Channels of q, k and v go no farther from 0, behind wide norms; None for none.
        per_layer, streams: Of decoders whose layers have inputs of their own.
        state, selective, delta, conv, recurrent, memory: Of mixers with states.
        latent, compressed: Of mixers with latent attention, and of those with compressed entries.
        blocks: Of mixers that choose blocks of tokens, with all heads that choose.
        hyper: Residual streams; None for one residual.
        further_layers: How many the checkpoint has behind these, for drafts; they are not read.
        logits_divisor: Logits are divided by it.
        tied: The embedding is the output matrix too.
        generates: There is an output matrix; without one, the model makes embeddings alone.
        unquantized: Linear layers that online quantization leaves alone, of "qkv", "o", "gate_up",
            "down", "state", "experts", "lm_head".
    """

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    tied: bool
    intermediate_size: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    activation: str = "silu"
    gated: bool = True
    norm: str = "rms"
    norm_bias: bool = True
    norm_weight: bool = True
    parallel: bool = False
    table_size: int | None = None
    num_positions: int = 0
    position_offset: int = 0
    transposed: bool = False
    lm_head_bias: bool = False
    attention_scale: float = 1.0
    generates: bool = True
    norm_offset: float = 0.0
    final_norm_offset: float | None = None
    post_norm_eps: float | None = None
    unit_embedding: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    down_bias: bool | None = None
    alibi: Alibi | None = None
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    mlp_scale: float = 1.0
    gate_scale: float = 1.0
    gate_limits: tuple[float, float, float] | None = None
    gated_attention: bool = False
    gate_activation: str = "sigmoid"
    value_norm: bool = False
    v_head_dim: int | None = None
    value_scale: float = 1.0
    q_dim: int | None = None
    qkv_limit: float | None = None
    per_layer: PerLayerSpec | None = None
    streams: StreamSpec | None = None
    state: StateBlock | None = None
    selective: SelectiveBlock | None = None
    delta: DeltaBlock | None = None
    conv: ConvBlock | None = None
    recurrent: RgLruSpec | None = None
    memory: MemoryBlock | None = None
    logits_divisor: float = 1.0
    latent: LatentSpec | None = None
    compressed: CompressedSpec | None = None
    blocks: BlockIndexerSpec | None = None
    hyper: HyperSpec | None = None
    further_layers: int = 0
    unquantized: frozenset[str] = frozenset({"lm_head"})
    names: WeightNames = WeightNames()

    @property
    def value_dim(self) -> int:
        """Channels of a head's values."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    def quantizes(self, layer: str, stored: WeightFormat) -> bool:
        """Tell whether a layer is quantized; what is stored so is nothing to choose."""
        return not stored.online or layer not in self.unquantized

    def sized(self, i: int) -> DecoderSpec:
        """Return the specification with the names and sizes of one layer."""
        layer = self.layers[i]
        own: dict[str, Any] = {
            "names": layer.names,
            "latent": layer.latent,
            "o_bias": layer.o_bias,
            "num_heads": layer.num_heads,
            "head_dim": layer.head_dim,
            "num_kv_heads": layer.num_kv_heads,
            "intermediate_size": layer.intermediate_size,
        }
        return replace(self, **{name: value for name, value in own.items() if value is not None})
