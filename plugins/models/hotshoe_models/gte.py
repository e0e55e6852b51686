"""GTE's long encoders (gte-multilingual, gte v1.5, Snowflake's arctic-embed-m-v2.0) and Jina 3.

Sources: Zhang et al. 2024, arXiv:2407.19669; Sturua et al. 2024, arXiv:2409.10173. Defaults are
those of transformers' GteConfig and JinaEmbeddingsV3Config. `NewModel` is what GTE's own code
("new-impl", as published) calls the same model; only that code stretches rotations, by a fixed
factor (https://kexue.fm/archives/9706).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from hotshoe.layers import BuildContext, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.bert import UNUSED, separator
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderLayer, EncoderNames, EncoderSpec
from hotshoe_models.remade import Recipe, remake
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    count,
    head_dim,
    mapping,
    number,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 250048,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 8192,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-12,
}
JINA = {
    **DEFAULTS,
    "vocab_size": 250002,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 8194,
    "layer_norm_eps": 1e-5,
}
#: Bases of rotations where a file gives none; of `NewModel` that of its configuration class.
THETA, JINA_THETA, NEW_THETA = 160_000.0, 20_000.0, 10_000.0
NAMES = EncoderNames(
    positions=None,
    qkv=("attention.qkv_proj",),
    o="attention.o_proj",
    attention_norm="attn_ln",
    up=("mlp.up_gate_proj",),
    down="mlp.down_proj",
    mlp_norm="mlp_ln",
    prefixes=r"(gte|new)\.",
    unused=UNUSED,
)
JINA_NAMES = EncoderNames(
    positions=None,
    embedding_norm="emb_ln",
    layer="encoder.layers.{}.",
    qkv=("mixer.Wqkv",),
    o="mixer.out_proj",
    attention_norm="norm1",
    up=("mlp.fc1",),
    down="mlp.fc2",
    mlp_norm="norm2",
    prefixes=r"roberta\.",
    unused=UNUSED,
)
#: Key of the adapter that is asked for, which overrides give.
TASK = "lora_task"
ORIGINAL = ".parametrizations.weight.original"
#: What "new-impl" is served with.
NEW = {
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
}


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build GteModel."""
    return _build(with_defaults(config, DEFAULTS), ctx, NAMES, THETA)


def build_jina(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build JinaEmbeddingsV3Model."""
    return _build(with_defaults(config, JINA), ctx, JINA_NAMES, JINA_THETA)


def build_published_jina(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build Jina Embeddings 3 as published, with the adapter of `lora_task`, or none.

    Its file names XLMRobertaModel, and adapters lie beside all matrices.

    Raises:
        CheckpointError: There is no such adapter.
    """
    tasks, task = config.get("lora_adaptations") or [], config.get(TASK)
    if not isinstance(tasks, list) or (task is not None and task not in tasks):
        named = ", ".join(map(str, tasks)) if isinstance(tasks, list) else "none"
        raise refuse(config, TASK, f"has adapters for: {named}")
    number_of = None if task is None else tasks.index(task)
    scale = number(config, "lora_alpha") / config.size("lora_rank") if task is not None else 1.0
    remake(ctx, partial(_adapted, number_of, scale))
    theta = config.get("rotary_emb_base", JINA_THETA)
    ctx.weights.ignore([r"^roberta\.pooler\."])
    return build_jina(replace(config, values={"rope_theta": theta, **config.values}), ctx)


def _adapted(task: int | None, scale: float, names: Iterable[str]) -> Mapping[str, Recipe]:
    """Make each matrix of its parts: itself, and the two matrices of all adapters."""
    found: dict[str, Recipe] = {}
    for name in names:
        if name.endswith(ORIGINAL):
            prefix = name.removesuffix(ORIGINAL)
            parts = name, *(f"{prefix}.parametrizations.weight.0.lora_{part}" for part in "AB")
            found[f"{prefix}.weight"] = parts, partial(_sum, task, scale)
    return found


def _sum(task: int | None, scale: float, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Add an adapter to a matrix; of a table the two matrices change places."""
    if task is None:
        return weight
    a, b = a[task].float(), b[task].float()
    change = b @ a if len(b) == len(weight) else a @ b
    return (weight.float() + scale * change).to(weight.dtype)


def build_new(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build NewModel.

    Raises:
        CheckpointError: The file asks for what is not served.
    """
    config = with_defaults(config, DEFAULTS | NEW)
    for name, served in NEW.items():
        if config.get(name) != served:
            raise refuse(config, name, f"is served with {served!r}")
    scaling = mapping(config, "rope_scaling")
    factor = 1.0
    if scaling:
        own = replace(config, values=scaling)
        if own.get("type") != "ntk" or own.get("mixed_b") is not None:
            raise refuse(config, "rope_scaling", 'is served with type "ntk", without mixed_b')
        factor = number(own, "factor")
    return _build(config, ctx, NAMES, NEW_THETA, factor)


def _build(
    config: ModelConfig,
    ctx: BuildContext,
    names: EncoderNames,
    theta: float,
    stretched: float = 1.0,
) -> Encoder:
    types, gated = count(config, "type_vocab_size"), names is NAMES
    size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if head_dim(config) * heads != size:
        raise refuse(config, "head_dim", f"has {size} channels for {heads} heads")
    spec = EncoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=size,
        num_heads=heads,
        intermediate_size=config.size("intermediate_size"),
        layers=(EncoderLayer(_rotation(config, ctx, theta, stretched)),)
        * config.size("num_hidden_layers"),
        norm_eps=number(config, "layer_norm_eps"),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        names=names if types else replace(names, types=None),
        gated=gated,
        gates_last=gated,
        up_bias=not gated,
        num_types=types,
        separator=separator(config) if types > 1 else None,
    )
    return Encoder(spec, ctx)


def _rotation(config: ModelConfig, ctx: BuildContext, theta: float, stretched: float) -> Rotation:
    """Return how heads turn: with a larger base and all frequencies lower where it is stretched."""
    dim, values = head_dim(config), dict(config.values)
    if stretched != 1.0:
        base = values.get("rope_theta", theta) * stretched
        values |= {"rope_theta": base, "rope_scaling": None}
    made = Rotation.from_config(values, dim, ctx.max_model_len, default_theta=theta)
    slower = stretched ** (2 / dim)
    return replace(made, inv_freq=tuple(one / slower for one in made.inv_freq))
