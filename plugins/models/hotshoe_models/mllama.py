"""Llama 3.2 Vision (text): Llama, whose layers that look at images are left out.

A request without images passes them by, as if they were not there. Defaults are those of
transformers' MllamaTextConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.values import decoder_spec, layer_specs, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "hidden_act": "silu",
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "rope_parameters": None,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "cross_attention_layers": None,
}
DEFAULT_THETA = 500_000.0
SEEING = [3, 8, 13, 18, 23, 28, 33, 38]
#: Tokens that the embedding has behind the vocabulary, such as that of an image.
FURTHER = 8
WHY = "the layers that look at images: requests with images are refused"


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MllamaForCausalLM, and the text part of MllamaForConditionalGeneration."""
    config = with_defaults(config, DEFAULTS)
    count, seeing = config.size("num_hidden_layers"), config.get("cross_attention_layers")
    seeing = SEEING if seeing is None else seeing
    if not isinstance(seeing, list) or any(type(i) is not int for i in seeing):
        raise refuse(config, "cross_attention_layers", "needs a list of numbers of layers")
    kept = [i for i in range(count) if i not in seeing]
    if not kept:
        raise refuse(config, "cross_attention_layers", f"looks at images in all of {count} layers")
    # Layers of text move up, one after the other, each to a place that is free by then.
    for i in seeing:
        ctx.weights.rename(rf"^model\.layers\.{i}\.", f"seeing.{i}.")
    for new, old in enumerate(kept):
        ctx.weights.rename(rf"^model\.layers\.{old}\.", f"model.layers.{new}.")
    ctx.weights.ignore([r"^seeing\."], WHY)
    config = replace(config, values={**config.values, "num_hidden_layers": len(kept)})
    layers = layer_specs(config, ctx, default_theta=DEFAULT_THETA)
    rows = config.size("vocab_size") + FURTHER
    return DenseDecoder(decoder_spec(config, layers, table_size=rows), ctx)
