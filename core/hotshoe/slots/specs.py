"""Specifications of every slot: frozen, hashable, free of torch, so that they can be compared,
printed, sent and asked about without a device.

Element types are named as in PyTorch: "float32", "bfloat16", "float16", "int8".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hotshoe.slots.quant_spec import QuantSpec
from hotshoe.slots.slopes import Alibi
from hotshoe.slots.versions import since
from hotshoe.types.rows import RowForm

#: The letters that the axes of a `KVLayout` may have, sorted.
_AXES = ("dht", "Ddht", "Tdht", "DTdht")


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Where one layer's keys and values lie inside a block; data, so that it can be compared.

    Each of K and V is an array per block whose axes are written outermost first:
    h = kv head, t = token in the block, d = channel. An upper-case letter is the outer part of an
    axis split by `pack`, its lower-case letter then the inner part of size `pack`. So "thd" is
    plain token-major, and "hDtd" with pack 2 keeps pairs of channels together for each token.
    A layer's cache tensor is [2, num_blocks, block_size * num_kv_heads * head_dim], K first.

    Values may be narrower than keys. Then V has room for as many channels as they have, or, with
    `wide_values`, for as many as keys have, and what lies behind a head's values is zero.

    `gap` elements that hold nothing lie between two blocks: where blocks are a power of two apart,
    those of one head meet in a few sets of a processor's cache. Operations that declare a gap go by
    the tensor's strides. Where tokens have scales of their own, 4 divides the gap.

    Raises:
        ValueError: The axes are none, or the gap is negative.
    """

    name: str
    k_axes: str
    v_axes: str
    pack: int = 1
    gap: int = 0
    wide_values: bool = False

    def __post_init__(self) -> None:
        if self.gap < 0:
            raise ValueError(f"KVLayout.gap is {self.gap}, but elements between blocks are meant")
        for name in ("k_axes", "v_axes"):
            axes = getattr(self, name)
            if "".join(sorted(axes)) not in _AXES:
                raise ValueError(
                    f"KVLayout.{name} has h, t and d once each, and T or D where t or d is split, "
                    f"not {axes!r}"
                )

    def block_shape(
        self, axes: str, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        """Return the sizes of one block's axes, outermost first."""
        sizes = {"h": num_kv_heads, "t": block_size, "d": head_dim}
        for letter in "td":
            if letter.upper() in axes:
                sizes[letter.upper()] = sizes[letter] // self.pack
                sizes[letter] = self.pack
        return tuple(sizes[letter] for letter in axes)

    def value_room(self, head_dim: int, v_head_dim: int | None) -> int:
        """Return the channels that V has for a head, given those of its keys and values."""
        return head_dim if v_head_dim is None or self.wide_values else v_head_dim


PLAIN_LAYOUT = KVLayout("plain", "thd", "thd")


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Paged causal attention over one layer's KV cache.

    Attributes:
        scale: Factor on q·k.
        window: A query at position p sees keys in (p - window, p]; None sees all.
        softcap: Scores become softcap * tanh(score / softcap); None leaves them.
            Source: Gemma 2, arXiv:2408.00118.
        sinks: A learned logit per head joins the softmax's denominator.
        kv_scales: How keys and values of 8-bit types are scaled: "none"; "tensor", by two numbers
            of the checkpoint; "token", each token's head by its own, computed as it is written.
        v_head_dim: Channels of a head's values and results, fewer than `head_dim`; None for equal.
        alibi: Scores fall with the distance, behind scale and cap; None for not at all.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    kv_dtype: str
    block_size: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    kv_scales: str = since(2, "none")
    v_head_dim: int | None = since(2, None)
    alibi: Alibi | None = since(2, None)

    @property
    def value_dim(self) -> int:
        """Channels of a head's values."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim


@dataclass(frozen=True, slots=True)
class RotaryAndCacheSpec:
    """Per-head norm of q and k (optional), rotary embedding, and the write of k and v to the cache.

    Attributes:
        rotary_dim: Leading channels that are rotated; 0 rotates none.
        interleaved: Pairs are (2i, 2i+1) rather than (i, i + rotary_dim/2).
        qk_norm_eps: RMS norm over head_dim with this epsilon before rotation; None for no norm.
        qk_norm_offset: The norm's effective weight is offset + weight (Gemma uses 1).
        kv_scales, v_head_dim: As in `AttentionSpec`.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    dtype: str
    kv_dtype: str
    block_size: int
    layout: KVLayout
    interleaved: bool = False
    qk_norm_eps: float | None = None
    qk_norm_offset: float = 0.0
    kv_scales: str = since(2, "none")
    v_head_dim: int | None = since(2, None)

    @property
    def value_dim(self) -> int:
        """Channels of a head's values."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """y = x W^T + b with W [out_features, in_features]; None for a QuantSpec means `dtype`."""

    in_features: int
    out_features: int
    dtype: str
    bias: bool = False
    weight: QuantSpec | None = None
    activation: QuantSpec | None = None
    out_dtype: str | None = None

    @property
    def row_quant(self) -> QuantSpec | None:
        """How x may come quantized: by token or its groups, in 8 bits, as it comes; else None."""
        given, permuted = self.activation, self.weight is not None and self.weight.permuted
        given = None if given and (permuted or given.format == "fp4_e2m1") else given
        return given if given and given.granularity in ("token", "group") else None


@dataclass(frozen=True, slots=True)
class MlaAttentionSpec:
    """Multi-head latent attention: a cache row of latent | rotated key for each token, all heads'.

    Head h has the keys U_h latent | rotated key, and the values V_h latent; a matrix [num_heads,
    nope_dim + v_dim, latent_dim] holds every U_h above its V_h.
    Source: DeepSeek-V2, arXiv:2405.04434.

    Attributes:
        num_heads: This rank's.
        latent_dim: Numbers that keys and values of a token are made of (`kv_lora_rank`).
        nope_dim: Channels of a head's q and k that are not rotated; its first ones.
        rope_dim: Channels behind them, which share one key among all heads; 0 for none.
        v_dim: Channels of a head's values and results.
        scale: Factor on q·k.
        interleaved: Rotated pairs are (2i, 2i+1) rather than (i, i + rope_dim/2).
        adapted: Adapters may change the matrix: a call may bring `LatentAdapters`.
    """

    num_heads: int
    latent_dim: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    dtype: str
    kv_dtype: str
    block_size: int
    scale: float
    interleaved: bool = False
    adapted: bool = since(2, False)

    @property
    def row(self) -> RowForm:
        """What the cache keeps of a token. Rotated keys are never of 8 bits."""
        return RowForm(self.latent_dim, self.rope_dim, self.dtype, self.kv_dtype)

    @property
    def up(self) -> LinearSpec:
        """The matrix of all U_h and V_h, as a product of its own would have it."""
        outputs = self.num_heads * (self.nope_dim + self.v_dim)
        return LinearSpec(self.latent_dim, outputs, self.dtype)


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """The choice of tokens that a query attends to, by small heads over a cache of their keys.

    A query at position p scores each position s <= p: the sum over heads of the head's weight times
    the positive part of its q·key. The top_k largest are chosen, or all of fewer. One key serves
    all heads. A factor that all scores share would change nothing, so there is none.
    Source: DeepSeek-V3.2, arXiv:2512.02556, section 2.1.

    Attributes:
        num_heads: All of them; ranks choose alike.
        head_dim: Channels of a head's q, and of the key.
        rope_dim: The leading ones, which are rotated; 0 for none.
        top_k: Most tokens that a query attends to.
        interleaved: Rotated pairs are (2i, 2i+1) rather than (i, i + rope_dim/2).
    """

    num_heads: int
    head_dim: int
    rope_dim: int
    top_k: int
    dtype: str
    kv_dtype: str
    block_size: int
    interleaved: bool = False

    @property
    def row(self) -> RowForm:
        """What the cache keeps of a token."""
        return RowForm(self.head_dim, 0, self.dtype, self.kv_dtype)


@dataclass(frozen=True, slots=True)
class SparseMlaSpec:
    """Latent attention in which each query attends to chosen tokens alone, `top_k` at most.

    Attributes:
        sinks: A learned logit of each head joins the softmax's denominator.
    """

    attention: MlaAttentionSpec
    top_k: int
    sinks: bool = False

    @property
    def dtype(self) -> str:
        """The element type of q and of the result."""
        return self.attention.dtype


@dataclass(frozen=True, slots=True)
class NormSpec:
    """RMS norm over the last dimension; the effective weight is weight_offset + weight.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.

    Attributes:
        quant: The result comes quantized so, with its scales; None for the plain result. Asked
            for only where the linear layer behind takes it; refuse it rather than quantize in a
            second pass, which the linear operation does itself.
    """

    hidden_size: int
    eps: float
    dtype: str
    weight_offset: float = 0.0
    quant: QuantSpec | None = None


@dataclass(frozen=True, slots=True)
class AddNormSpec:
    """residual += residual_scale * x, then RMS norm of the new residual; quant as in NormSpec."""

    hidden_size: int
    eps: float
    dtype: str
    weight_offset: float = 0.0
    residual_scale: float = 1.0
    quant: QuantSpec | None = None


@dataclass(frozen=True, slots=True)
class LayerNormSpec:
    """(x - mean) / sqrt(variance + eps) * weight, plus a bias where `bias` is true.

    Mean and variance are those of the last dimension. Source: Ba et al. 2016, arXiv:1607.06450.
    """

    hidden_size: int
    eps: float
    dtype: str
    bias: bool = True


@dataclass(frozen=True, slots=True)
class GatedActivationSpec:
    """act(gate) * up over [.., 2 * size] = gate | up; activation "silu", "gelu" or "gelu_tanh".

    quant as in NormSpec.
    """

    size: int
    activation: str
    dtype: str
    quant: QuantSpec | None = None


@dataclass(frozen=True, slots=True)
class GatedMlpSpec:
    """y = down(act(gate) * up) with gate | up = gate_up(x), a whole block.

    `gate_up` has twice as many outputs as `down` has inputs. Biases and how operands are stored
    are in both; the activation is one of `GatedActivationSpec`.
    """

    gate_up: LinearSpec
    down: LinearSpec
    activation: str

    @property
    def dtype(self) -> str:
        """The element type of x and y."""
        return self.gate_up.dtype


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """How a token chooses its experts from the router's logits, and what each one counts.

    Scores are float32. A choice is the `top_k` largest scores, with the correction added where
    there is one; a weight is the score without it.

    Attributes:
        scoring: "softmax" over all experts; "sigmoid" or "sqrtsoftplus" of each; or "sparsemixer":
            the largest logit, then the largest of the others, each weighted by its share among the
            logits that lie within `2 * jitter` of it. Source: Liu et al. 2024, arXiv:2409.12136.
        renormalize, scale: Weights are divided by their sum; a factor on them.
        correction: A learned number per expert moves the choice alone. Source: arXiv:2412.19437.
        groups, groups_kept: Experts lie in so many groups of equal size, of which so many are
            chosen first, and only experts of these.
        group_score: A group counts as its "max", or as the sum of its largest two, "top2".
        jitter: See "sparsemixer".
    """

    scoring: str = "softmax"
    renormalize: bool = False
    scale: float = 1.0
    correction: bool = False
    groups: int = 1
    groups_kept: int = 1
    group_score: str = "max"
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture of experts: each token is computed by `top_k` of `num_experts` MLPs.

    y = sum over the chosen experts of weight * down(inner(gate_up(x))). `gate_up` and `down` are
    the matrices of one expert, stored alike in all. With `gated`, gate_up has gates before as many
    ups, and inner is act(min(gate, limit)) * (clamp(up, -limit, limit) + shift); without, inner is
    act(min(x, limit)). silu(x) is then x * sigmoid(alpha * x).

    Attributes:
        activation: One of `GatedActivationSpec`, or "relu2", the square of what is positive.
        limit: None clamps nothing.
        alpha, shift: See above. Source of all three: gpt-oss, arXiv:2508.10925.
        held: Experts whose matrices are here, and calls come with a `Placement`; None for all.
        gate_limit: The limit of gates alone, where it is another than `limit`; None for that.
    """

    gate_up: LinearSpec
    down: LinearSpec
    num_experts: int
    top_k: int
    activation: str
    router: RouterSpec = RouterSpec()
    gated: bool = True
    limit: float | None = None
    alpha: float = 1.0
    shift: float = 0.0
    held: int | None = since(2, None)
    gate_limit: float | None = since(2, None)

    @property
    def dtype(self) -> str:
        """The element type of x and y."""
        return self.gate_up.dtype

    @property
    def places(self) -> int:
        """Experts that have matrices here."""
        return self.num_experts if self.held is None else self.held


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """Row gather from a [num_embeddings, size] table, times `scale`."""

    num_embeddings: int
    size: int
    dtype: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Low-rank adapters of one matrix product, added to its result.

    Attributes:
        in_features, out_features: Of the product.
        rank: Of each adapter; smaller ones are filled up with zeros.
        max_adapters: Adapters that are held at once.
        dtype: Of x, y and the adapters.
        parts: Outputs of each of several stacked matrices, which share the ranks equally: of b, the
            rows of a matrix are zero outside of its outputs. Empty for one matrix.
        late: The step itself writes who has which adapter, right before the call, in no order.
    """

    in_features: int
    out_features: int
    rank: int
    max_adapters: int
    dtype: str
    parts: tuple[int, ...] = ()
    late: bool = False


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """Choice of one token per row of logits."""

    vocab_size: int


@dataclass(frozen=True, slots=True)
class TransferSpec:
    """Movement of a step's small data between the host and an asynchronous device.

    Attributes:
        fetches: Weights or adapters come from host memory, too, beside the device's work.
    """

    max_steps_in_flight: int
    fetches: bool = since(2, False)


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """Recording of whole decode steps of up to `max_num_seqs` requests, to be replayed.

    Attributes:
        pieces: Other steps are recorded too, in pieces between which the host is called.
        operations: What a step calls, each as `slot=candidate`, for those who cannot record
            everything; sorted, and not shown.
    """

    max_num_seqs: int
    pieces: bool = False
    operations: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class CommunicatorSpec:
    """Exchange of tensors among `size` processes, one device each.

    Attributes:
        size: Their number.
        across_hosts: They are of several hosts, which share neither memory nor files.
    """

    size: int
    across_hosts: bool = since(2, False)
