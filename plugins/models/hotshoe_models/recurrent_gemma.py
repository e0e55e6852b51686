"""RecurrentGemma: two of three layers are recurrent blocks, every third attends within a window.

Defaults are those of transformers' RecurrentGemmaConfig.
"""

from dataclasses import replace

import torch

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RgLruSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    SLIDING,
    activation,
    decoder_spec,
    flag,
    layer_specs,
    number,
    optional_size,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2560,
    "intermediate_size": 7680,
    "num_hidden_layers": 26,
    "num_attention_heads": 10,
    "num_key_value_heads": None,
    "lru_width": None,
    "attention_window_size": 2048,
    "conv1d_width": 4,
    "logits_soft_cap": 30.0,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_parameters": None,
    "partial_rotary_factor": 0.5,
    "block_types": ("recurrent", "recurrent", "attention"),
    "attention_bias": False,
    "tie_word_embeddings": True,
}
#: Kinds of blocks, which repeat: the names of their mixers, too.
KINDS = ("recurrent", "attention")
NAMES = WeightNames(
    final_norm="model.final_norm",
    input_norm="temporal_pre_norm",
    mlp_norm="channel_pre_norm",
    qkv=("temporal_block.q_proj", "temporal_block.k_proj", "temporal_block.v_proj"),
    o="temporal_block.o_proj",
    gate_up=("mlp_block.gate_proj", "mlp_block.up_proj"),
    down="mlp_block.down_proj",
    unused=(r"\.rotary_emb\.inv_freq$", r"^model\.normalizer$"),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build RecurrentGemmaForCausalLM."""
    # Files say no length, and plain rotations do not depend on one.
    config = with_defaults(config, {**DEFAULTS, "max_position_embeddings": ctx.max_model_len})
    if config.size("intermediate_size") % 2:
        raise refuse(config, "intermediate_size", "divides it among gates and ups")
    if activation(config, "hidden_activation") != "gelu_tanh":
        raise refuse(config, "hidden_activation", "knows only gelu_pytorch_tanh")
    count = config.size("num_hidden_layers")
    types, window = _mixers(config, count), config.size("attention_window_size")
    attending = layer_specs(config, ctx, [SLIDING] * count, window, partial_rotary=True)
    layers = tuple(
        layer if mixer == "attention" else replace(layer, mixer=mixer, rotation=None, window=None)
        for layer, mixer in zip(attending, types, strict=True)
    )
    # The factor is rounded to the model's type before it multiplies, as in training.
    scale = torch.tensor(config.size("hidden_size") ** 0.5, dtype=ctx.torch_dtype).item()
    spec = decoder_spec(
        config,
        layers,
        intermediate_size=config.size("intermediate_size") // 2,
        activation="gelu_tanh",
        norm_offset=1.0,
        qkv_bias=flag(config, "attention_bias"),
        o_bias=True,
        mlp_bias=True,
        logits_softcap=number(config, "logits_soft_cap"),
        embedding_scale=scale,
        recurrent=_recurrence(config, ctx),
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)


def _mixers(config: ModelConfig, count: int) -> list[str]:
    """Return the mixer of each layer."""
    kinds = config.get("block_types")
    if not isinstance(kinds, list | tuple) or not kinds or any(kind not in KINDS for kind in kinds):
        raise refuse(config, "block_types", f"needs a list of {', '.join(KINDS)}")
    return [kinds[i % len(kinds)] for i in range(count)]


def _recurrence(config: ModelConfig, ctx: BuildContext) -> RgLruSpec:
    """Describe the recurrent blocks."""
    width = optional_size(config, "lru_width") or config.size("hidden_size")
    heads = config.size("num_attention_heads")
    if width % heads:
        raise refuse(config, "lru_width", f"has {width} channels to divide among {heads} heads")
    if config.size("conv1d_width") < 2:
        raise refuse(config, "conv1d_width", "convolves over two tokens or more")
    return RgLruSpec(
        width,
        heads,
        config.size("conv1d_width"),
        ctx.dtype,
        ctx.conv_state_dtype or ctx.dtype,
        ctx.state_dtype,
        ctx.block_size,
        ctx.checkpoints,
    )
