"""Nomic's BERT: rotations in place of learned positions, MLPs with gates, no biases on matrices.

Its second version has no gates, biases, and experts in every other layer.

Sources: Nussbaum et al. 2024, arXiv:2402.01613; Nussbaum et al. 2025, arXiv:2502.07972. Defaults
are those of transformers' NomicBertConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames, Rotation
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.bert import UNUSED, separator
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderLayer, EncoderNames, EncoderSpec
from hotshoe_models.gguf.keys import CONVERTED
from hotshoe_models.mixtures import mixture
from hotshoe_models.values import activation, flag, head_dim, number, refuse, with_defaults

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
#: Of published files, too: the activation without experts and with them, and biases on matrices.
ACTIVATIONS = ("swiglu", "gelu")
BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
#: Key of how often layers have experts.
EVERY = "moe_every_n_layers"
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
PLAIN_NAMES = replace(NAMES, up=("mlp.fc1",), experts_bias="mlp.experts.bias")
STACK = "mlp.experts.mlp."
EXPERTS = MoeNames(router="mlp.router.layer", gate_up=(f"{STACK}{{}}.w1",), down=f"{STACK}{{}}.w2")


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build NomicBertModel."""
    config = _as_transformers(config)
    sparse = bool(config.get(EVERY))
    size, heads, dim = (
        config.size("hidden_size"),
        config.size("num_attention_heads"),
        head_dim(config),
    )
    if dim * heads != size:
        raise refuse(config, "head_dim", f"has {size} channels for {heads} heads")
    types = config.size("type_vocab_size")
    rotation = Rotation.from_config(config.values, dim, ctx.max_model_len, default_theta=THETA)
    layers = (EncoderLayer(rotation),) * config.size("num_hidden_layers")
    names = NAMES
    if sparse:
        layers = _with_experts(config, ctx, layers)
        names = replace(PLAIN_NAMES, experts_bias=None) if flag(config, CONVERTED) else PLAIN_NAMES
    spec = EncoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=size,
        num_heads=heads,
        intermediate_size=config.size("intermediate_size"),
        layers=layers,
        norm_eps=number(config, "layer_norm_eps"),
        activation=activation(config, "hidden_act"),
        names=names,
        gated=not sparse,
        attention_bias=sparse,
        mlp_bias=sparse,
        num_types=types,
        separator=separator(config) if types > 1 else None,
    )
    return Encoder(spec, ctx)


def _with_experts(
    config: ModelConfig, ctx: BuildContext, layers: tuple[EncoderLayer, ...]
) -> tuple[EncoderLayer, ...]:
    """Give experts to every so-manieth layer, the second one among them."""
    experts = mixture(
        with_defaults(config, {"num_experts": 8, "moe_top_k": 2}),
        RouterSpec(renormalize=flag(config, "moe_normalize_expert_weights")),
        top_k="moe_top_k",
        size="intermediate_size",
        gated=False,
        names=EXPERTS,
    )
    sparse = [i % config.size(EVERY) == 1 for i in range(len(layers))]
    for i in (i for i, chosen in enumerate(sparse) if chosen):
        prefix = NAMES.layer.format(i)
        for part in ("w1", "w2"):
            each = tuple((f"{prefix}{STACK}{e}.{part}.weight",) for e in range(experts.num_experts))
            ctx.weights.unstack(f"{prefix}{STACK}{part}", each, transposed=part == "w2")
    pairs = zip(layers, sparse, strict=True)
    return tuple(replace(layer, mixture=experts) if chosen else layer for layer, chosen in pairs)


def _as_transformers(config: ModelConfig) -> ModelConfig:
    """Return the configuration with transformers' keys, and defaults for absent ones.

    Raises:
        CheckpointError: The file asks for what is not served.
    """
    sparse = bool(config.get(EVERY))
    act = ACTIVATIONS[sparse]
    if config.get("activation_function", act) != act:
        raise refuse(config, "activation_function", f"is served with {act}")
    for name, wanted in {**dict.fromkeys(BIASES, sparse), "prenorm": False}.items():
        if flag(config, name) != wanted and name in config.values:
            raise refuse(config, name, f"is served {'with' if wanted else 'without'} it")
    if config.get("rotary_emb_fraction", 1.0) != 1.0:
        raise refuse(config, "rotary_emb_fraction", "rotates whole heads")
    if config.get("rotary_scaling_factor") is not None:
        raise refuse(config, "rotary_scaling_factor", "is served without it")
    renamed = {key: config.values[own] for key, own in KEYS.items() if own in config.values}
    gates = {"hidden_act": "gelu"} if sparse else {}
    return replace(config, values={**DEFAULTS, **gates, **renamed, **config.values})
