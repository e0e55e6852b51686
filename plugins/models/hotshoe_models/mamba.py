"""Mamba 1 and Falcon-Mamba: layers of one state-space block each, without attention and MLP.

Falcon-Mamba norms B, C and the steps of time. Defaults are those of transformers' MambaConfig and
FalconMambaConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mamba2 import NAMES
from hotshoe_models.selective import selective_block
from hotshoe_models.spec import DecoderSpec, LayerSpec
from hotshoe_models.values import flag, number, optional_size, with_defaults

DEFAULTS = {
    "vocab_size": 50280,
    "hidden_size": 768,
    "state_size": 16,
    "num_hidden_layers": 32,
    "layer_norm_epsilon": 1e-5,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "time_step_rank": "auto",
    "tie_word_embeddings": True,
}
FALCON_DEFAULTS = {**DEFAULTS, "mixer_rms_eps": 1e-6}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MambaForCausalLM."""
    return _decoder(with_defaults(config, DEFAULTS), ctx, None)


def build_falcon(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build FalconMambaForCausalLM."""
    config = with_defaults(config, FALCON_DEFAULTS)
    return _decoder(config, ctx, number(config, "mixer_rms_eps"))


def _decoder(config: ModelConfig, ctx: BuildContext, norm_eps: float | None) -> DenseDecoder:
    block = selective_block(
        config,
        ctx,
        inner=optional_size(config, "intermediate_size"),  # files of Falcon-Mamba differ in it
        norm_eps=norm_eps,
        name="mixer",
        bias=flag(config, "use_bias"),
        conv_bias=flag(config, "use_conv_bias"),
    )
    spec = DecoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        layers=(LayerSpec(None, mixer="selective", mlp=False),) * config.size("num_hidden_layers"),
        norm_eps=number(config, "layer_norm_epsilon"),
        tied=flag(config, "tie_word_embeddings"),
        selective=block,
        names=NAMES,
    )
    ctx.weights.rename(r"^backbone\.embedding\.", "backbone.embeddings.")
    return DenseDecoder(spec, ctx)
