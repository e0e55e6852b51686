"""Nomic's BERT: rotations in place of learned positions, MLPs with gates, no biases on matrices.

Source: Nussbaum et al. 2024, arXiv:2402.01613. Defaults are those of transformers' NomicBertConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.bert import UNUSED, separator
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderLayer, EncoderNames, EncoderSpec
from hotshoe_models.values import activation, flag, head_dim, number, refuse

DEFAULTS = {
    "vocab_size": 30528,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "silu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 2048,
}
#: Base of rotations where the file gives none.
THETA = 1000.0
#: What published files call keys, which have GPT-2's names.
KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "max_position_embeddings": "n_positions",
    "rope_theta": "rotary_emb_base",
}
#: Of published files, too: the gates' activation, and no biases on matrices.
GATED, NO_BIASES = "swiglu", ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm")
NAMES = EncoderNames(
    positions=None,
    embedding_norm="emb_ln",
    layer="encoder.layers.{}.",
    qkv=("attn.Wqkv",),
    o="attn.out_proj",
    attention_norm="norm1",
    up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    mlp_norm="norm2",
    prefixes=r"nomic_bert\.",
    unused=UNUSED,
)


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build NomicBertModel."""
    config = _as_transformers(config)
    size, heads, dim = (
        config.size("hidden_size"),
        config.size("num_attention_heads"),
        head_dim(config),
    )
    if dim * heads != size:
        raise refuse(config, "head_dim", f"has {size} channels for {heads} heads")
    types = config.size("type_vocab_size")
    rotation = Rotation.from_config(config.values, dim, ctx.max_model_len, default_theta=THETA)
    spec = EncoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=size,
        num_heads=heads,
        intermediate_size=config.size("intermediate_size"),
        layers=(EncoderLayer(rotation),) * config.size("num_hidden_layers"),
        norm_eps=number(config, "layer_norm_eps"),
        activation=activation(config, "hidden_act"),
        names=NAMES,
        gated=True,
        attention_bias=False,
        mlp_bias=False,
        num_types=types,
        separator=separator(config) if types > 1 else None,
    )
    return Encoder(spec, ctx)


def _as_transformers(config: ModelConfig) -> ModelConfig:
    """Return the configuration with transformers' keys, and defaults for absent ones.

    Raises:
        CheckpointError: The file asks for what is not served.
    """
    if config.get("activation_function", GATED) != GATED:
        raise refuse(config, "activation_function", f"is served with {GATED}")
    for name in NO_BIASES:
        if flag(config, name):
            raise refuse(config, name, "is served without it")
    if config.get("rotary_emb_fraction", 1.0) != 1.0:
        raise refuse(config, "rotary_emb_fraction", "rotates whole heads")
    if config.get("rotary_scaling_factor") is not None:
        raise refuse(config, "rotary_scaling_factor", "is served without it")
    renamed = {key: config.values[own] for key, own in KEYS.items() if own in config.values}
    return replace(config, values={**DEFAULTS, **renamed, **config.values})
