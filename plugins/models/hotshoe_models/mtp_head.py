"""Layers that predict further tokens in a directory of their own, as speculators writes them.

Speculators copies the layer out of the checkpoint of a Qwen 3.5 or a Qwen3-Next, trains it, and
writes it under names of its own. Embedding and output matrix are the model's.

Source: speculators' configuration class, converter and layers of type mtp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models import qwen, qwen35, qwen_next
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import FurtherLayer, FurtherNames
from hotshoe_models.heads import check_sizes, check_verifier, plain_decoder
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import mapping, refuse

NAMES = FurtherNames(
    embedding_norm="token_layernorm",
    hidden_norm="hidden_layernorm",
    join="input_proj",
    final_norm="final_layernorm",
    passes_normed=True,
)
LAYER = "mtp_layers.{}."
#: What describes a decoder whose layers of full attention have the form of the file's.
FAMILIES: dict[str, Callable[[ModelConfig, BuildContext], DecoderSpec]] = {
    "qwen3": qwen.describe_qwen3,
    "qwen3_5_moe_text": qwen35.describe_moe,
    "qwen3_5_text": qwen35.describe,
    "qwen3_next": qwen_next.describe,
}


def build(
    config: ModelConfig, ctx: BuildContext, model: object, target: ModelConfig
) -> DenseDecoder:
    """Give a model the layer of a directory of type mtp.

    Raises:
        ConfigError: It was trained for another model.
        CheckpointError: It is of another type, or has several layers.
    """
    model = plain_decoder(model, target)
    if config.get("speculators_model_type") != "mtp":
        raise CheckpointError(
            f"config.json: speculators_model_type is {config.get('speculators_model_type')!r}, "
            "not 'mtp'; give a directory that speculators wrote, or none to use the layers of the "
            "model's own checkpoint"
        )
    if config.get("num_nextn_predict_layers", 1) != 1:
        raise refuse(config, "num_nextn_predict_layers", "of speculators has one such layer")
    check_verifier(config, target)
    inner = replace(config, values=mapping(config, "transformer_layer_config"))
    family = FAMILIES.get(str(inner.get("model_type")))
    if family is None:
        raise refuse(inner, "model_type", f"has a layer of {', '.join(FAMILIES)}")
    spec = family(inner, ctx)
    check_sizes(inner, model, ("hidden_size", "vocab_size"))
    own = [layer for layer in spec.layers if layer.mixer == "attention"][-1:]
    if not own:
        raise refuse(inner, "layer_types", "needs a layer of full attention")
    if ctx.stage.is_last:
        spec = replace(spec, layers=tuple(own), names=replace(spec.names, layer=LAYER))
        ctx.weights.ignore([r"^(?:embed_tokens|lm_head)\."])
        model.draft_head = FurtherLayer(spec, ctx, model, 0, NAMES)
    return model
