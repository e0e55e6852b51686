"""Mamba 2: layers of one state-space block each, without attention and MLP.

Defaults are those of transformers' Mamba2Config.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, LayerSpec, WeightNames
from hotshoe_models.states import state_block
from hotshoe_models.values import flag, number, with_defaults

DEFAULTS = {
    "num_heads": 128,
    "head_dim": 64,
    "vocab_size": 32768,
    "hidden_size": 4096,
    "state_size": 128,
    "num_hidden_layers": 64,
    "layer_norm_epsilon": 1e-5,
    "expand": 2,
    "conv_kernel": 4,
    "n_groups": 8,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
KEYS = {
    "heads": "num_heads",
    "head_dim": "head_dim",
    "groups": "n_groups",
    "state": "state_size",
    "conv": "conv_kernel",
    "expand": "expand",
}
NAMES = WeightNames(
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    input_norm="norm",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Mamba2ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    bias, eps = flag(config, "use_bias"), number(config, "layer_norm_epsilon")
    block = state_block(
        config,
        ctx,
        KEYS,
        eps=eps,
        name="mixer",
        in_bias=bias,
        conv_bias=flag(config, "use_conv_bias"),
        out_bias=bias,
    )
    spec = DecoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        layers=(LayerSpec(None, mixer="state", mlp=False),) * config.size("num_hidden_layers"),
        norm_eps=eps,
        tied=flag(config, "tie_word_embeddings"),
        state=block,
        names=NAMES,
    )
    ctx.weights.rename(r"^backbone\.embedding\.", "backbone.embeddings.")
    return DenseDecoder(spec, ctx)
