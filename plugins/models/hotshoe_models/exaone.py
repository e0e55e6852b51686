"""EXAONE 4: norms behind each block and none before, norms of q and k per head.

Where some layers have a window, the others do not rotate q and k. Defaults are those of
transformers' Exaone4Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE
from hotshoe_models.olmo import NAMES as OLMO
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    layer_specs,
    layer_types,
    optional_size,
    with_defaults,
)

DEFAULTS = {
    **SHAPE,
    "vocab_size": 102400,
    "intermediate_size": 16384,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "layer_types": None,
}
#: Every so-manieth layer attends to everything.
PATTERN = 4
NAMES = replace(OLMO, wide_qk_norm=False)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Exaone4ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    window = optional_size(config, "sliding_window")
    windowed = window is not None and config.get("layer_types") is None
    every = config.size("sliding_window_pattern", PATTERN) if windowed else 1
    types = layer_types(config, lambda i: SLIDING if (i + 1) % every else FULL)
    layers = [
        layer if kind == SLIDING or window is None else replace(layer, rotation=None)
        for kind, layer in zip(types, layer_specs(config, ctx, types, window), strict=True)
    ]
    return DenseDecoder(decoder_spec(config, tuple(layers), names=NAMES), ctx)
