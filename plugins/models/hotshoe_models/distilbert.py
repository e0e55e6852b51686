"""DistilBERT: BERT with half of its layers, without types of tokens.

Source: Sanh et al. 2019, arXiv:1910.01108. Defaults are those of transformers' DistilBertConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.bert import UNUSED
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderLayer, EncoderNames, EncoderSpec
from hotshoe_models.values import PLAIN_ACTIVATIONS, activation, with_defaults

DEFAULTS = {
    "vocab_size": 30522,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "activation": "gelu",
    "max_position_embeddings": 512,
}
EPS = 1e-12
NAMES = EncoderNames(
    types=None,
    layer="transformer.layer.{}.",
    qkv=tuple(f"attention.{name}_lin" for name in "qkv"),
    o="attention.out_lin",
    attention_norm="sa_layer_norm",
    up=("ffn.lin1",),
    down="ffn.lin2",
    mlp_norm="output_layer_norm",
    prefixes=r"distilbert\.",
    unused=(*UNUSED, r"^vocab_"),
)


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build DistilBertModel."""
    config = with_defaults(config, DEFAULTS)
    spec = EncoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("dim"),
        num_heads=config.size("n_heads"),
        intermediate_size=config.size("hidden_dim"),
        layers=(EncoderLayer(),) * config.size("n_layers"),
        norm_eps=EPS,
        activation=activation(config, "activation", PLAIN_ACTIVATIONS),
        names=NAMES,
        num_positions=config.size("max_position_embeddings"),
    )
    return Encoder(spec, ctx)
