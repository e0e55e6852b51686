"""NeoBERT: Llama's blocks with attention in both directions, and names of its own.

Channels of queries and keys are rotated in pairs of neighbors. They are read in such an order that
the pairs lie half a head apart, where rotations look for them.

Source: Le Breton et al. 2025, arXiv:2502.19587, and the code beside its checkpoint, whose
configuration class has these defaults.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.bidirectional import as_encoder
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.remade import Recipe, remake
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import decoder_spec, layer_specs, number, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "norm_eps": 1e-6,
    "hidden_act": "SwiGLU",
    "rms_norm": True,
    "rope": True,
    "rope_parameters": None,
    "max_position_embeddings": 4096,
}
NAMES = WeightNames(
    embedding="model.encoder",
    final_norm="model.layer_norm",
    layer="model.transformer_encoder.{}.",
    input_norm="attention_norm",
    mlp_norm="ffn_norm",
    qkv=("qkv",),
    o="wo",
    gate_up=("ffn.w12",),
    down="ffn.w3",
    bare=(r"^(?=(encoder|transformer_encoder|layer_norm)\.)", "model."),
)
#: Channels of MLPs are a multiple of this.
STEP = 8


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build NeoBERT. A head for words is not read."""
    config = with_defaults(config, DEFAULTS)
    for key in ("rms_norm", "rope"):
        if config.get(key) is not True:
            raise refuse(config, key, "is described with true")
    if str(config.get("hidden_act")).lower() != "swiglu":
        raise refuse(config, "hidden_act", "is described with SwiGLU")
    config = replace(config, architecture="NeoBERTModel")
    heads, exact = config.size("num_attention_heads"), 2 * config.size("intermediate_size") // 3
    remake(ctx, partial(_recipes, heads))
    ctx.weights.ignore([r"^decoder\."])
    spec = decoder_spec(
        config,
        layer_specs(config, ctx),
        intermediate_size=-(-exact // STEP) * STEP,
        activation="silu",
        norm_eps=number(config, "norm_eps"),
        tied=False,
        names=NAMES,
    )
    return as_encoder(spec, ctx)


def _recipes(heads: int, names: Iterable[str]) -> Mapping[str, Recipe]:
    """Order the rows of each layer's q, k and v."""
    ordered = partial(_ordered, heads)
    return {name: ((name,), ordered) for name in names if name.endswith(".qkv.weight")}


def _ordered(heads: int, rows: Tensor) -> Tensor:
    """Put rows of each head's q, k and v behind each other: all q, all k, all v; of q and k those
    of even channels in front."""
    size = rows.shape[1]
    q, k, v = rows.view(heads, 3, -1, size).unbind(1)
    halves = [part.view(heads, -1, 2, size).transpose(1, 2).reshape(-1, size) for part in (q, k)]
    return torch.cat([*halves, v.reshape(-1, size)])
