"""XGLM: OPT's shape with scaled embeddings, GELU, and sines and cosines in the place of learned
positions, which no file has.

Defaults are those of transformers' XGLMConfig.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.layers import BuildContext
from hotshoe.loader.sources import Described, Stored, TensorSource
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.opt import NAMES as OPT
from hotshoe_models.opt import NORM_EPS, POSITION_OFFSET
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    flag,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 256008,
    "max_position_embeddings": 2048,
    "d_model": 1024,
    "ffn_dim": 4096,
    "num_layers": 24,
    "attention_heads": 16,
    "activation_function": "gelu",
    "scale_embedding": True,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
OWN_KEYS = {
    "hidden_size": "d_model",
    "intermediate_size": "ffn_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "attention_heads",
}
POSITIONS = "model.embed_positions"
NAMES = replace(
    OPT,
    embedding="model.embed_tokens",
    positions=POSITIONS,
    final_norm="model.layer_norm",
    layer="model.layers.{}.",
    bare=(r"^(?=(embed_tokens|layers|layer_norm)\.)", "model."),
    unused=(r"\.embed_positions\.weights$",),  # older files have them
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build XGLMForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    values = {key: config.get(own) for key, own in OWN_KEYS.items()}
    others = {"num_key_value_heads": None, "head_dim": None}
    config = replace(config, values={**config.values, **values, **others})
    size, count = config.size("hidden_size"), config.size("max_position_embeddings")
    if size % 2 or size < 4:
        raise refuse(config, "d_model", "has as many sines as cosines, two at least")
    if flag(config, "add_cross_attention"):
        raise refuse(config, "add_cross_attention", "attends to its own text alone")
    spec = decoder_spec(
        config,
        (LayerSpec(rotation=None),) * config.size("num_hidden_layers"),
        activation=activation(config, "activation_function", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=NORM_EPS,
        num_positions=count,
        position_offset=POSITION_OFFSET,
        embedding_scale=size**0.5 if flag(config, "scale_embedding") else 1.0,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        names=NAMES,
    )
    decode = ctx.weights.decode
    table = sines(POSITION_OFFSET + count, size)
    ctx.weights.decode = lambda found: _WithTable(decode(found) if decode else found, table)
    return DenseDecoder(spec, ctx)


def sines(count: int, size: int) -> Tensor:
    """Return vectors of positions [count, size] float32: sines, then cosines, of frequencies that
    fall from 1 to 1/10,000; position 1 pads texts, and has zeros."""
    falling = torch.arange(size // 2) * (-math.log(10_000) / (size // 2 - 1))
    angles = torch.arange(count)[:, None] * falling.exp()
    table = torch.cat((angles.sin(), angles.cos()), 1)
    table[1] = 0.0
    return table


class _WithTable:
    """A source that has the table of positions, too."""

    def __init__(self, source: TensorSource, table: Tensor) -> None:
        self._source, self._table, self._name = source, table, f"{POSITIONS}.weight"

    def names(self) -> Iterable[str]:
        """Return the source's names and the table's."""
        return [*self._source.names(), self._name]

    def tensor(self, name: str) -> Tensor:
        """Return the source's tensor, or the table."""
        return self._table if name == self._name else self._source.tensor(name)

    def taken(self, name: str) -> None:
        """Tell the source of its own."""
        if name != self._name:
            self._source.taken(name)

    def stored(self, name: str) -> Stored:
        """Return type and size; the table takes nothing in a file."""
        assert isinstance(self._source, Described)
        return Stored("float32", 0) if name == self._name else self._source.stored(name)
