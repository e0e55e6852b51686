"""An `EncoderSpec`: what families of encoders differ in, as data."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.layers import Mixture, Rotation
from hotshoe_models.disentangled import Distances
from hotshoe_models.distances import BiasRule


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """Names of weights; None where a model has none. Those behind `layer` follow its prefix.

    Attributes:
        experts_bias: Of what is added to the sum of a token's experts.
        prefixes: What names of some checkpoints begin with, as a regular expression.
        unused: Patterns of tensors that are not read.
    """

    words: str = "embeddings.word_embeddings"
    positions: str | None = "embeddings.position_embeddings"
    types: str | None = "embeddings.token_type_embeddings"
    embedding_norm: str | None = "embeddings.LayerNorm"
    layer: str = "encoder.layer.{}."
    qkv: tuple[str, ...] = tuple(f"attention.self.{name}" for name in ("query", "key", "value"))
    o: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: tuple[str, ...] = ("intermediate.dense",)
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"
    experts_bias: str | None = None
    final_norm: str | None = None
    prefixes: str = ""
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """What layers of a model may differ in.

    Attributes:
        rotation: Of queries and keys; None for none.
        window: Tokens that are seen on each side; None for all.
        normed: There is a norm in front of attention, where norms come first.
        mixture: Experts in the place of the MLP; None for none.
    """

    rotation: Rotation | None = None
    window: int | None = None
    normed: bool = True
    mixture: Mixture | None = None


@dataclass(frozen=True, slots=True)
class Relative:
    """Rows of distances that queries and keys meet, in a table that all layers share.

    Attributes:
        name, norm: Of the table, and of the norm of its rows; None for none.
        distances: Which rows.
    """

    name: str
    norm: str | None
    distances: Distances


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An architecture.

    Attributes:
        activation: "gelu", "gelu_tanh", "silu" or "relu".
        gated: The MLP has gates; `gates_last`: their rows lie behind those of the other matrix.
        rms: Norms are RMS norms.
        head_dim, scale: Channels of a head, and the factor on q·k; None for the usual ones.
        bias: What is added to logits by distance; None for nothing.
        relative: What queries and keys meet beside each other; None for nothing.
        norms_first: Norms come in front of blocks, not behind the addition of their results.
        attention_bias, mlp_bias, norm_bias: Which matrices and norms have biases.
        up_bias: The first matrices of MLPs have one, where `mlp_bias` is.
        num_positions: Rows of the table of positions, of which the first `position_offset` are no
            token's.
        num_types: Rows of the table of token types.
        separator: The token that the second of two texts follows, whose type is 1; None for none.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    layers: tuple[EncoderLayer, ...]
    norm_eps: float
    activation: str
    names: EncoderNames
    gated: bool = False
    gates_last: bool = False
    rms: bool = False
    head_dim: int | None = None
    scale: float | None = None
    bias: BiasRule | None = None
    relative: Relative | None = None
    norms_first: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    up_bias: bool = True
    norm_bias: bool = True
    num_positions: int = 0
    position_offset: int = 0
    num_types: int = 0
    separator: int | None = None

    @property
    def channels(self) -> int:
        """Of a head."""
        return self.head_dim or self.hidden_size // self.num_heads
