"""Further models whose code is published beside their checkpoints: Baichuan 1 and 2, TeleChat 1 and
2, Tele-FLM, Jais, Llama as an encoder, and the first forms of Aquila, Falcon and StableLM.

Sources: that code, and the keys and tensors of the files. Defaults are those of its configuration
classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.models.base import CLASSIFY
from hotshoe.models.pooling import read_classifier
from hotshoe.slots import Alibi
from hotshoe.types.pooling import PoolingKind
from hotshoe_models import falcon, stablelm
from hotshoe_models.bidirectional import as_encoder
from hotshoe_models.classify import Score
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.gguf.keys import CONVERTED, NORMED_WORDS
from hotshoe_models.gpt2 import DEFAULTS as GPT2
from hotshoe_models.gpt2 import NAMES as GPT2_NAMES
from hotshoe_models.gpt2 import gpt_spec
from hotshoe_models.llama import DEFAULTS as LLAMA
from hotshoe_models.llama import llama_spec
from hotshoe_models.published import respelled
from hotshoe_models.remade import Recipe, remake
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    decoder_spec,
    flag,
    head_dim,
    layer_specs,
    number,
    refuse,
    with_defaults,
)

BAICHUAN_NAMES = WeightNames(qkv=("self_attn.W_pack",))
TELECHAT_NAMES = WeightNames(
    embedding="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv=("self_attention.query_key_value",),
    o="self_attention.dense",
)
TELECHAT_KEYS = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "ffn_hidden_size": "intermediate_size",
    "layer_norm_epsilon": "rms_norm_eps",
}
TELECHAT_DEFAULTS = {
    **LLAMA,
    "rms_norm_eps": 1e-5,
    "seq_length": 8192,
    "base_seqlen": 8192,
    "training_seqlen": 8192,
    "apply_residual_connection_post_layernorm": False,
    "embed_layernorm": False,
}
TELEFLM_DEFAULTS = {
    **LLAMA,
    "use_mup": False,
    "mup_scale_factor": 1.0,
    "input_mult": 1.0,
    "output_mult": 1.0,
}
JAIS_NAMES = replace(
    GPT2_NAMES,
    positions=None,
    gate_up=("mlp.c_fc2", "mlp.c_fc"),
    unused=(*GPT2_NAMES.unused, r"^(transformer\.)?relative_pe\."),
)
#: Keys of the later models, and those of the first.
JAIS_KEYS = {
    "mup_embeddings_scale": "embeddings_scale",
    "mup_scale_qk_dot_by_d": "scale_qk_dot_by_d",
}
JAIS_DEFAULTS = {
    **GPT2,
    "position_embedding_type": "learned",
    "embeddings_scale": 1.0,
    "width_scale": None,
    "mup_output_alpha": 1.0,
    "mup_width_scale": 1.0,
    "scale_qk_dot_by_d": False,
}
#: The only values served of options.
JAIS_FIXED = {"activation_function": "swiglu", "position_embedding_type": "alibi"}
FALCON_KEYS = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_head_kv": "num_kv_heads",
}
STABLELM_KEYS = {"norm_eps": "layer_norm_eps", "rope_pct": "partial_rotary_factor"}
#: States that classes are read of, as files of bidirectional Llamas call them.
RANKED: dict[str, PoolingKind] = {"avg": "mean", "cls": "cls", "last": "last"}
#: Of rotation, where a family's code has no other; and of heads for which it can be stretched.
BASE, MIN_DIM = 10_000.0, 4


def build_aquila(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build AquilaModel, which has an output matrix, whatever its name says."""
    config = with_defaults(config, LLAMA)
    return DenseDecoder(llama_spec(config, layer_specs(config, ctx), generates=True), ctx)


def build_bidirectional(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build LlamaBidirectionalModel, an encoder."""
    config = with_defaults(config, LLAMA)
    return as_encoder(llama_spec(config, layer_specs(config, ctx)), ctx)


def build_bidirectional_ranker(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build LlamaBidirectionalForSequenceClassification: the encoder, and classes of its states'
    mean, or of another of them. Logits are divided by a temperature."""
    config = with_defaults(config, {"pooling": "avg", "temperature": 1.0})
    pooling, temperature = config.get("pooling"), number(config, "temperature")
    if not isinstance(pooling, str) or pooling not in RANKED:
        raise refuse(config, "pooling", f"knows only {', '.join(RANKED)}")
    model = build_bidirectional(replace(config, architecture="LlamaBidirectionalModel"), ctx)
    shape = len(read_classifier(config).labels), model.hidden_size
    score = Score(ctx, "score.weight", shape)
    model.classify = lambda hidden: score(hidden).div_(temperature)
    model.class_pooling = RANKED[pooling]
    model.tasks = model.tasks | {CLASSIFY}
    return model


def build_falcon(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build RWForCausalLM; 40B says by its `model_type` that it has the later layers."""
    later = config.get("model_type") == "RefinedWeb"
    config = with_defaults(respelled(config, FALCON_KEYS), {"new_decoder_architecture": later})
    return falcon.build(config, ctx)


def build_stablelm(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build StableLMEpochForCausalLM."""
    return stablelm.build(respelled(config, STABLELM_KEYS), ctx)


def build_baichuan(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build BaichuanForCausalLM and BaiChuanForCausalLM.

    7B rotates q and k. The code of 13B reads no `max_position_embeddings`, and has slopes by
    distance (ALiBi).
    """
    slopes, converted = config.get("max_position_embeddings") is None, flag(config, CONVERTED)
    config = with_defaults(config, LLAMA)
    alibi = Alibi(config.size("num_attention_heads")) if slopes else None
    still = (LayerSpec(rotation=None),) * config.size("num_hidden_layers")
    layers = still if slopes else layer_specs(config, ctx)
    if config.size("vocab_size") == NORMED_WORDS:
        remake(ctx, lambda names: {"lm_head.weight": (("lm_head.weight",), unit_rows)})
    names = WeightNames() if converted else BAICHUAN_NAMES
    return DenseDecoder(llama_spec(config, layers, alibi=alibi, names=names), ctx)


def unit_rows(matrix: Tensor) -> Tensor:
    """Give each row a length of one."""
    return normalize(matrix.float()).to(matrix.dtype)


def build_telechat(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build TeleChatForCausalLM and TeleChat2ForCausalLM.

    Beyond `training_seqlen` their code rotates by a text's length.
    """
    config = with_defaults(respelled(config, TELECHAT_KEYS), TELECHAT_DEFAULTS)
    for key in ("apply_residual_connection_post_layernorm", "embed_layernorm"):
        if flag(config, key):
            raise refuse(config, key, "is served without it")
    trained, base = config.size("training_seqlen"), config.size("base_seqlen")
    if ctx.max_model_len > trained:
        raise refuse(config, "training_seqlen", "is served up to it; lower --max-model-len")
    # The base grows by whole powers of two of the length, as it does for all shorter texts.
    growth = max(2 ** math.ceil(math.log2(trained / base) + 1) - 1, 1)
    dim = head_dim(config)
    if dim < MIN_DIM:
        raise refuse(config, "n_head", f"has heads of {MIN_DIM} channels or more")
    own = {"rope_theta": BASE * growth ** (dim / (dim - 2))}
    config = replace(config, values={**config.values, **own})
    heads = config.size("num_attention_heads")
    remake(ctx, partial(_stacked, config.size("num_key_value_heads", heads)))
    spec = decoder_spec(
        config, layer_specs(config, ctx), o_bias=True, down_bias=True, names=TELECHAT_NAMES
    )
    return DenseDecoder(spec, ctx)


def _stacked(kv_heads: int, names: Iterable[str]) -> dict[str, Recipe]:
    """Say how q, k and v are stacked, of queries and of rows of each head's key and value."""

    def make(queries: Tensor, others: Tensor) -> Tensor:
        rows = others.view(kv_heads, 2, -1, others.shape[-1]).transpose(0, 1)
        return torch.cat([queries, rows.reshape(others.shape)])

    found: dict[str, Recipe] = {}
    for name in names:
        if name.endswith("self_attention.query.weight"):
            both = name, name.replace("query.weight", "key_value.weight")
            found[name.replace("query.weight", "query_key_value.weight")] = both, make
    return found


def build_teleflm(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build TeleFLM, whose embeddings and logits have factors."""
    config = with_defaults(config, TELEFLM_DEFAULTS)
    factors: dict[str, Any] = {}
    if flag(config, "use_mup"):
        divisor = number(config, "mup_scale_factor") / number(config, "output_mult")
        factors = {"embedding_scale": number(config, "input_mult"), "logits_divisor": divisor}
    return DenseDecoder(llama_spec(config, layer_specs(config, ctx), **factors), ctx)


def build_jais(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build JAISLMHeadModel: GPT-2 with gates, slopes by distance (ALiBi) and factors."""
    config = with_defaults(respelled(config, JAIS_KEYS), JAIS_DEFAULTS)
    for key, value in JAIS_FIXED.items():
        if config.get(key) != value:
            raise refuse(config, key, f"is served with {value} alone")
    heads, size = config.size("n_head"), config.size("n_embd")
    both = ("mup_output_alpha", "mup_width_scale")
    parts = both if config.get("width_scale") is None else ("width_scale",)
    factors = {"attention_scale": heads / size} if flag(config, "scale_qk_dot_by_d") else {}
    spec = gpt_spec(
        config,
        None,
        activation="silu",
        gated=True,
        alibi=Alibi(heads),
        embedding_scale=number(config, "embeddings_scale"),
        logits_divisor=math.prod(1 / number(config, key) for key in parts),
        transposed=not flag(config, CONVERTED),
        names=JAIS_NAMES,
        **factors,
    )
    return DenseDecoder(spec, ctx)
