"""The encoder of T5, as sentence-t5 and gtr-t5 have it: RMS norms first, a bias by distance.

Sources: Raffel et al. 2019, arXiv:1910.10683; Ni et al. 2021, arXiv:2108.08877. Defaults are those
of transformers' T5Config.
"""

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.distances import Buckets
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderLayer, EncoderNames, EncoderSpec
from hotshoe_models.values import number, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
}
#: mT5's class has others.
MT5 = {
    **DEFAULTS,
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
#: By the name of an MLP: whether it has gates, its activation, its first matrices.
MLPS = {
    "relu": (False, "relu", ("wi",)),
    "gated-gelu": (True, "gelu_tanh", ("wi_0", "wi_1")),
    "gated-silu": (True, "silu", ("wi_0", "wi_1")),
}
MLP = "layer.1.DenseReluDense"
#: What decoders have, and the embedding's second name.
UNUSED = (r"^decoder\.", r"^lm_head\.", r"^encoder\.embed_tokens\.")


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build T5EncoderModel."""
    return _build(with_defaults(config, DEFAULTS), ctx)


def build_mt5(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build MT5EncoderModel."""
    return _build(with_defaults(config, MT5), ctx)


def _build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    kind = config.require("feed_forward_proj")
    if kind not in MLPS:
        raise refuse(config, "feed_forward_proj", f"knows only {', '.join(MLPS)}")
    gated, activation, up = MLPS[kind]
    names = EncoderNames(
        words="shared",
        positions=None,
        types=None,
        embedding_norm=None,
        layer="encoder.block.{}.",
        qkv=tuple(f"layer.0.SelfAttention.{name}" for name in "qkv"),
        o="layer.0.SelfAttention.o",
        attention_norm="layer.0.layer_norm",
        up=tuple(f"{MLP}.{name}" for name in up),
        down=f"{MLP}.wo",
        mlp_norm="layer.1.layer_norm",
        final_norm="encoder.final_layer_norm",
        unused=UNUSED,
    )
    spec = EncoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("d_model"),
        num_heads=config.size("num_heads"),
        intermediate_size=config.size("d_ff"),
        layers=(EncoderLayer(),) * config.size("num_layers"),
        norm_eps=number(config, "layer_norm_epsilon"),
        activation=activation,
        names=names,
        gated=gated,
        rms=True,
        head_dim=config.size("d_kv"),
        scale=1.0,
        bias=_buckets(config),
        norms_first=True,
        attention_bias=False,
        mlp_bias=False,
    )
    return Encoder(spec, ctx)


def _buckets(config: ModelConfig) -> Buckets:
    """Read the rule of distances.

    Raises:
        CheckpointError: It has too few rows, or they reach farther than its distances.
    """
    rows = config.size("relative_attention_num_buckets")
    farthest = config.size("relative_attention_max_distance")
    if rows % 4 or rows // 4 >= farthest:
        raise CheckpointError(
            f"config.json: {rows} buckets for distances of up to {farthest}; served are multiples "
            "of 4, of which a quarter are fewer than the distances"
        )
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    return Buckets(name, rows, farthest)
