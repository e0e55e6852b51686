"""ModernBERT as a decoder (Ettin): windows in two of three layers, a norm of embeddings, and a
matrix, an activation and a norm in front of the output matrix.

Defaults are those of transformers' ModernBertDecoderConfig.
"""

import re
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional

from hotshoe.layers import BuildContext, LayerNorm, Linear, Matrix
from hotshoe.models import ModelConfig
from hotshoe.models.base import GENERATE
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    activation,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    mapping,
    number,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "classifier_activation": "gelu",
    "local_attention": 128,
    "layer_types": None,
    "tie_word_embeddings": True,
    "rope_parameters": None,
}
#: Rotary bases of each type of layer, and the keys under which older files have them.
BASES = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
#: One of so many layers attends to everything.
EVERY = 3
TABLE = "model.embeddings.tok_embeddings"
NAMES = WeightNames(
    embedding=TABLE,
    embedding_norm="model.embeddings.norm",
    final_norm="model.final_norm",
    lm_head="decoder",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    o="attn.Wo",
    gate_up=("mlp.Wi",),
    down="mlp.Wo",
    input_norm="attn_norm",
    mlp_norm="mlp_norm",
    bare=(r"^(?=(embeddings|layers|final_norm)\.)", "model."),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build ModernBertDecoderForCausalLM."""
    config = with_bases(with_defaults(config, DEFAULTS))
    if activation(config, "classifier_activation") != "gelu":
        raise refuse(config, "classifier_activation", "knows only gelu")
    every = config.size("global_attn_every_n_layers", EVERY)
    types = layer_types(config, lambda i: SLIDING if i % every else FULL)
    # A file counts the tokens of both sides.
    window = max(1, config.size("local_attention") // 2)
    layers = layer_specs(config, ctx, types, window)
    first = replace(layers[0], names=replace(NAMES, input_norm=None))
    bias, tied = flag(config, "attention_bias"), flag(config, "tie_word_embeddings")
    if tied:  # the matrix has the table's name
        ctx.weights.rename(r"^decoder\.bias$", f"{TABLE}.bias")
    spec = decoder_spec(
        config,
        (first, *layers[1:]),
        activation=activation(config, "hidden_activation"),
        norm="layer",
        norm_bias=flag(config, "norm_bias"),
        norm_eps=number(config, "norm_eps"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=flag(config, "mlp_bias"),
        lm_head_bias=flag(config, "decoder_bias"),
        names=NAMES,
    )
    return ModernBertDecoder(spec, ctx, flag(config, "classifier_bias"))


class ModernBertDecoder(DenseDecoder):
    """See `DenseDecoder`. Logits are made of norm(gelu(dense(hidden states)))."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, bias: bool) -> None:
        super().__init__(spec, ctx)
        if not ctx.stage.is_last:
            ctx.weights.elsewhere([r"^lm_head\.", rf"^{re.escape(TABLE)}\.bias$"])
            return
        size, rows = spec.hidden_size, [("lm_head.dense", spec.hidden_size)]
        quantize = spec.quantizes("o", ctx.format)
        self._dense = Linear(ctx, Matrix(ctx, rows, size, bias=bias, quantize=quantize))
        self._norm = LayerNorm(ctx, "lm_head.norm", size, spec.norm_eps, bias=spec.norm_bias)

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """See `DenseDecoder`."""
        if task == GENERATE:
            hidden = self._norm(functional.gelu(self._dense(hidden)))
        return super().head(hidden, task)


def with_bases(config: ModelConfig) -> ModelConfig:
    """Return the configuration with how each type of layer rotates, as transformers writes it."""
    given = dict(mapping(config, "rope_parameters"))
    rope: dict[str, Any] = {}
    for kind, (key, base) in BASES.items():
        own = given.get(kind) or {}
        if not isinstance(own, dict):
            raise refuse(config, "rope_parameters", f"needs an object for layers of type {kind}")
        scaled = mapping(config, "rope_scaling")
        base = config.values.get(key, base)
        rope[kind] = {"rope_type": "default", "rope_theta": base, **scaled, **own}
    values = {**config.values, "rope_parameters": rope, "rope_scaling": None}
    return replace(config, values={**values, "num_key_value_heads": None, "head_dim": None})
