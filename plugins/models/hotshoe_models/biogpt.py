"""BioGPT: OPT's shape with scaled embeddings and GELU.

Defaults are those of transformers' BioGptConfig. Its `layer_norm_eps` is not read: norms have that
of OPT, whatever files say.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.opt import NAMES as OPT
from hotshoe_models.opt import NORM_EPS, POSITION_OFFSET
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import PLAIN_ACTIVATIONS, activation, decoder_spec, flag, with_defaults

DEFAULTS = {
    "vocab_size": 42384,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "max_position_embeddings": 1024,
    "layer_norm_eps": 1e-12,
    "scale_embedding": True,
    "tie_word_embeddings": True,
}
NAMES = replace(
    OPT,
    embedding="biogpt.embed_tokens",
    positions="biogpt.embed_positions",
    final_norm="biogpt.layer_norm",
    lm_head="output_projection",
    layer="biogpt.layers.{}.",
    bare=(r"^(?=(embed_tokens|embed_positions|layers|layer_norm)\.)", "biogpt."),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build BioGptForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    others = {"num_key_value_heads": None, "head_dim": None}
    config = replace(config, values={**config.values, **others})
    scaled = flag(config, "scale_embedding")
    spec = decoder_spec(
        config,
        (LayerSpec(rotation=None),) * config.size("num_hidden_layers"),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=NORM_EPS,
        num_positions=config.size("max_position_embeddings"),
        position_offset=POSITION_OFFSET,
        embedding_scale=config.size("hidden_size") ** 0.5 if scaled else 1.0,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
