"""Decoders that were made encoders: their tokens see later ones too, and nothing is cached."""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe_models.decoder import DenseDecoder, Layer
from hotshoe_models.packed import share
from hotshoe_models.spec import DecoderSpec


def as_encoder(spec: DecoderSpec, ctx: BuildContext) -> DenseDecoder:
    """Build a decoder whose tokens see later ones too. Windows count the tokens of one side."""
    layers = tuple(replace(layer, mixer="packed") for layer in spec.layers)
    model = DenseDecoder(replace(spec, layers=layers), ctx)
    share(layer.mixer for layer in model.layers if isinstance(layer, Layer))
    return model
