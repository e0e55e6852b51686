"""Specifications of whole layers and whole steps, made of those of their parts. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.slots.specs import AttentionSpec, GatedMlpSpec, LinearSpec


@dataclass(frozen=True, slots=True)
class DecoderLayerSpec:
    """One decoder layer: y = x + o(attention(qkv(norm(x)))), then y + mlp(norm(y)).

    Both norms are RMS norms. The parts are those of one rank.

    Attributes:
        qkv, o: The projections around attention.
        attention: Heads, window, sinks, the cache's type and blocks.
        mlp: Its block.
        norm_eps, norm_offset: Of both norms; the effective weight is offset + weight.
        rotary_dim, interleaved: As in `RotaryAndCacheSpec`; 0 rotates nothing.
        qk_norm_eps, qk_norm_offset: Of the norms of each head's q and k; None for no norms.
        ranks: Ranks that share the layer; they add up what `o` and what `mlp` give.
        adapters: Low-rank adapters may add to each product.
    """

    qkv: LinearSpec
    attention: AttentionSpec
    o: LinearSpec
    mlp: GatedMlpSpec
    norm_eps: float
    norm_offset: float = 0.0
    rotary_dim: int = 0
    interleaved: bool = False
    qk_norm_eps: float | None = None
    qk_norm_offset: float = 0.0
    ranks: int = 1
    adapters: bool = False

    @property
    def dtype(self) -> str:
        """The element type of x and y."""
        return self.qkv.dtype

    @property
    def hidden_size(self) -> int:
        """The channels of x and y."""
        return self.qkv.in_features

    @property
    def matrices(self) -> dict[str, LinearSpec]:
        """Its products by the names of their weights."""
        mlp = self.mlp
        return {"qkv": self.qkv, "o": self.o, "gate_up": mlp.gate_up, "down": mlp.down}


@dataclass(frozen=True, slots=True)
class ModelStepSpec:
    """All decoder layers of a stage, one behind another.

    Attributes:
        layers: Specifications in order, each with the number of layers in a row that have it.
    """

    layers: tuple[tuple[DecoderLayerSpec, int], ...]

    @property
    def dtype(self) -> str:
        """The element type of x and y."""
        return self.layers[0][0].dtype

    def each(self) -> list[DecoderLayerSpec]:
        """Return the specification of every layer."""
        return [spec for spec, count in self.layers for _ in range(count)]


def layer_features(spec: DecoderLayerSpec) -> frozenset[str]:
    """Name what a layer has beyond a plain one, in words that a candidate lists.

    A plain one has matrices and a cache in the model's type, no biases, `silu`, and rotates all
    channels of a head in halves.
    """
    attention, matrices = spec.attention, spec.matrices.values()
    has = {
        "window": attention.window is not None,
        "softcap": attention.softcap is not None,
        "sinks": attention.sinks,
        "narrow_values": attention.v_head_dim is not None,
        "alibi": attention.alibi is not None,
        f"kv_{attention.kv_dtype}": attention.kv_dtype != attention.dtype,
        "bias": any(matrix.bias for matrix in matrices),
        f"activation_{spec.mlp.activation}": spec.mlp.activation != "silu",
        "norm_offset": bool(spec.norm_offset or spec.qk_norm_offset),
        "qk_norm": spec.qk_norm_eps is not None,
        "partial_rotation": spec.rotary_dim != attention.head_dim,
        "interleaved": spec.interleaved,
        "ranks": spec.ranks > 1,
        "adapters": spec.adapters,
    }
    stored = {f"weight_{matrix.weight.format}" for matrix in matrices if matrix.weight}
    rows = {f"x_{matrix.activation.format}" for matrix in matrices if matrix.activation}
    return frozenset(name for name, holds in has.items() if holds) | stored | rows


def step_features(spec: ModelStepSpec) -> frozenset[str]:
    """Name what the layers have, as `layer_features`; "kinds" if they differ."""
    found = frozenset[str]().union(*(layer_features(layer) for layer, _ in spec.layers))
    return found | {"kinds"} if len({layer for layer, _ in spec.layers}) > 1 else found
