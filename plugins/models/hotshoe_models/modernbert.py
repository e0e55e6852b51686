"""ModernBERT: rotations in place of learned positions, windows in two of three layers, norms first.

Source: Warner et al. 2024, arXiv:2412.13663. Defaults are those of transformers' ModernBertConfig.
"""

from hotshoe.layers import BuildContext, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.bert import UNUSED
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderLayer, EncoderNames, EncoderSpec
from hotshoe_models.modernbert_decoder import DEFAULTS, EVERY, with_bases
from hotshoe_models.values import SLIDING, activation, flag, layer_types, number, with_defaults

NAMES = EncoderNames(
    words="embeddings.tok_embeddings",
    positions=None,
    types=None,
    embedding_norm="embeddings.norm",
    layer="layers.{}.",
    qkv=("attn.Wqkv",),
    o="attn.Wo",
    attention_norm="attn_norm",
    up=("mlp.Wi",),
    down="mlp.Wo",
    mlp_norm="mlp_norm",
    final_norm="final_norm",
    prefixes=r"model\.",
    unused=(*UNUSED, r"^head\.", r"^decoder\."),
)


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build ModernBertModel."""
    config = with_bases(with_defaults(config, DEFAULTS))
    every = config.size("global_attn_every_n_layers", EVERY)
    types = layer_types(config, lambda i: SLIDING if i % every else "full_attention")
    size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    rotations = {
        kind: Rotation.from_config(config.values, size // heads, ctx.max_model_len, layer_type=kind)
        for kind in sorted(set(types))
    }
    window = config.size("local_attention") // 2  # a file counts the tokens of both sides
    spec = EncoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=size,
        num_heads=heads,
        intermediate_size=config.size("intermediate_size"),
        layers=tuple(
            EncoderLayer(rotations[kind], window if kind == SLIDING else None, normed=i > 0)
            for i, kind in enumerate(types)
        ),
        norm_eps=number(config, "norm_eps"),
        activation=activation(config, "hidden_activation"),
        names=NAMES,
        gated=True,
        norms_first=True,
        **{name: flag(config, name) for name in ("attention_bias", "mlp_bias", "norm_bias")},
    )
    return Encoder(spec, ctx)
