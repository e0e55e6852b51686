"""BERT and encoders of its shape: MiniLM is one, RoBERTa counts positions from 2.

Sources: Devlin et al. 2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692. Defaults are those
of transformers' BertConfig.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.models.base import TOKEN_EMBED
from hotshoe.models.modules import LINEAR
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderLayer, EncoderNames, EncoderSpec
from hotshoe_models.remade import Recipe, remake
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    number,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "pad_token_id": 0,
    "is_decoder": False,
    "add_cross_attention": False,
}
#: Where RoBERTa's differ; its classes put the position of padding first.
ROBERTA = {"vocab_size": 50265, "pad_token_id": 1}
#: Where ELECTRA's differ.
ELECTRA = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
#: Of RoBERTa's likes.
PREFIXES = r"(roberta|data2vec_text)\."
TASK_TYPES = "task_type_embeddings.weight"
#: Positions that RoBERTa's tokens do not have.
OFFSET = 2
#: Heads for words, and what models of vectors alone do not use.
UNUSED = (
    r"^cls\.",
    r"^(discriminator|generator)_",
    r"^lm_head\.",
    r"^pooler\.",
    r"(^|\.)position_ids$",
)
#: Of XLM-RoBERTa-XL.
XL_NAMES = EncoderNames(
    embedding_norm=None,
    attention_norm="attention.self_attn_layer_norm",
    mlp_norm="LayerNorm",
    final_norm="encoder.LayerNorm",
    prefixes=r"roberta\.",
    unused=UNUSED,
)
#: Names of norms in checkpoints of TensorFlow's days.
OLD_NORMS = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build BertModel."""
    return Encoder(bert_spec(with_defaults(config, DEFAULTS), ctx, r"bert\."), ctx)


def build_colbert(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build HF_ColBERT: BERT beside a matrix for vectors of tokens, which core reads."""
    ctx.weights.ignore([rf"^{LINEAR}\."])
    model = build(config, ctx)
    model.tasks = frozenset({TOKEN_EMBED})
    return model


def build_roberta(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build RobertaModel, XLMRobertaModel and CamembertModel; Jina 3 is published as the second."""
    if config.get("position_embedding_type") == "rotary":
        builder = resolve_lazy("hotshoe_models.gte:build_published_jina")
        return cast("Encoder", builder(config, ctx))
    return Encoder(bert_spec(_roberta(config), ctx, PREFIXES, position_offset=OFFSET), ctx)


def _roberta(config: ModelConfig) -> ModelConfig:
    """Return a configuration of RoBERTa's kind with defaults.

    Raises:
        CheckpointError: Its positions are counted in another way.
    """
    config = with_defaults(config, DEFAULTS | ROBERTA)
    if config.get("pad_token_id") != OFFSET - 1:
        raise refuse(config, "pad_token_id", f"counts positions from {OFFSET}, behind padding's")
    return config


def build_xlm_roberta_xl(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build XLMRobertaXLModel: norms come first."""
    spec = bert_spec(_roberta(config), ctx, "", position_offset=OFFSET)
    return Encoder(replace(spec, names=XL_NAMES, norms_first=True), ctx)


def build_ernie(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build ErnieModel. Where there are types of tasks, every token has the first of them."""
    config = with_defaults(config, DEFAULTS)
    if config.get("use_task_id") is True:
        remake(ctx, _with_task)
    return Encoder(bert_spec(config, ctx, r"ernie\."), ctx)


def _with_task(names: Iterable[str]) -> Mapping[str, Recipe]:
    """Add the first type of tasks to each type of tokens."""
    found = [name for name in names if name.endswith(TASK_TYPES)]
    return {
        (types := f"{name.removesuffix(TASK_TYPES)}token_type_embeddings.weight"): (
            (types, name),
            lambda rows, tasks: rows + tasks[:1],
        )
        for name in found
    }


def build_electra(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build ElectraModel."""
    config = with_defaults(config, DEFAULTS | ELECTRA)
    if config.size("embedding_size", config.size("hidden_size")) != config.size("hidden_size"):
        raise refuse(config, "embedding_size", "is served where it is the hidden size")
    return Encoder(bert_spec(config, ctx, r"electra\."), ctx)


def bert_spec(
    config: ModelConfig, ctx: BuildContext, prefixes: str, **differences: Any
) -> EncoderSpec:
    """Describe an encoder of BERT's shape, changed by a family's differences.

    Args:
        config: With the family's defaults.
        prefixes: See `EncoderNames`.
        differences: Other fields.

    Raises:
        CheckpointError: A value is missing, malformed or not supported.
    """
    if config.get("position_embedding_type") != "absolute":
        raise refuse(config, "position_embedding_type", "is served with absolute positions")
    for name in ("is_decoder", "add_cross_attention"):
        if config.get(name):
            raise refuse(config, name, "is served as an encoder")
    for pattern, name in OLD_NORMS:
        ctx.weights.rename(pattern, name)
    types = config.size("type_vocab_size")
    return EncoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        num_heads=config.size("num_attention_heads"),
        intermediate_size=config.size("intermediate_size"),
        layers=(EncoderLayer(),) * config.size("num_hidden_layers"),
        norm_eps=number(config, "layer_norm_eps"),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        names=EncoderNames(prefixes=prefixes, unused=UNUSED),
        num_positions=config.size("max_position_embeddings"),
        num_types=types,
        separator=separator(config) if types > 1 else None,
        **differences,
    )


def separator(config: ModelConfig) -> int | None:
    """Return the token that stands between two texts; None where nobody names it."""
    found = config.get("sep_token_id")
    if isinstance(found, int):
        return found
    with suppress(CheckpointError):  # token ids may be all that requests give
        tokenizer = Tokenizer.load(config.path)
        return tokenizer.token_ids.get(tokenizer.special_tokens.get("sep_token", ""))
    return None
