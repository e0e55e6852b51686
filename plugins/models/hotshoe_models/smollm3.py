"""SmolLM 3: Llama's shape in which some layers do not rotate q and k.

Defaults are those of transformers' SmolLM3Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import llama_spec
from hotshoe_models.values import (
    FULL,
    SLIDING,
    flag,
    layer_specs,
    layer_types,
    optional_size,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "use_sliding_window": False,
    "sliding_window": None,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    "layer_types": None,
    "attention_bias": False,
    "mlp_bias": False,
}
DEFAULT_THETA = 2_000_000.0


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build SmolLM3ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    rotated = rotated_layers(config)
    windowed = flag(config, "use_sliding_window")
    window = optional_size(config, "sliding_window") if windowed else None
    types = layer_types(
        config, lambda i: SLIDING if window is not None and not rotated[i] else FULL
    )
    layers = layer_specs(config, ctx, types, window, default_theta=DEFAULT_THETA)
    layers = tuple(
        layer if turns else replace(layer, rotation=None)
        for layer, turns in zip(layers, rotated, strict=False)
    )
    return DenseDecoder(llama_spec(config, layers), ctx)


def rotated_layers(config: ModelConfig) -> list[bool]:
    """Tell which layers rotate; `no_rope_layers` has 1 for those that do, despite its name."""
    count = config.size("num_hidden_layers")
    given = config.get("no_rope_layers")
    if given is None:
        every = config.size("no_rope_layer_interval", 4)
        return [(i + 1) % every != 0 for i in range(count)]
    if not isinstance(given, list) or len(given) < count:
        raise refuse(config, "no_rope_layers", f"needs one entry for each of {count} layers")
    return [bool(turns) for turns in given[:count]]
