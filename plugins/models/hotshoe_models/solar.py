"""Solar Pro (preview): Llama's layers, in front of some of which the residual is mixed with what it
was before earlier ones.

Sources: the configuration class and the code beside this checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Rotary, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder, Layer
from hotshoe_models.llama import SHAPE, llama_spec
from hotshoe_models.mixers import Mixer
from hotshoe_models.norms import build_norm
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import (
    layer_specs,
    number,
    refuse,
    refuse_stages,
    with_defaults,
)
from hotshoe_models.whole import norm_before

DEFAULTS = {**SHAPE, "sliding_window": 2047, "bskcn_tv": [0.9, 0.8]}
DEFAULTS |= {"bskcn_1": [12, 20, 32, 44], "bskcn_2": [20, 32]}
DEFAULTS |= {"bskcn_3": [16, 24, 36, 48], "bskcn_4": [28, 40]}


@dataclass(frozen=True, slots=True)
class Skips:
    """What joins again, by the numbers of layers.

    Attributes:
        kept: For each of two places: layers in front of which the residual is kept there.
        mixed: Layers in front of which what lies there joins the residual.
        share: Its share of the sum.
    """

    kept: tuple[frozenset[int], ...]
    mixed: tuple[frozenset[int], ...]
    share: float


def build(config: ModelConfig, ctx: BuildContext) -> SolarDecoder:
    """Build SolarForCausalLM. Its codes disagree on who sees a window, so that texts end there."""
    config = with_defaults(config, DEFAULTS)
    if config.get("sliding_window") and ctx.max_model_len > config.size("sliding_window"):
        raise refuse(config, "sliding_window", "is served up to it; lower --max-model-len")
    scale = 1.0 if config.get("logit_scale") is None else number(config, "logit_scale")
    spec = llama_spec(config, layer_specs(config, ctx), logits_divisor=1 / scale)
    return SolarDecoder(spec, ctx, _skips(config))


def _skips(config: ModelConfig) -> Skips:
    """Return what joins again, and where.

    Raises:
        CheckpointError: A list is malformed, or something joins that was not kept.
    """
    count = config.size("num_hidden_layers")
    found: list[frozenset[int]] = []
    for place in range(1, 5):
        key = f"bskcn_{place}"
        listed = config.get(key)
        if not isinstance(listed, list) or not all(type(i) is int for i in listed):
            raise refuse(config, key, "needs a list of layers")
        found.append(frozenset(i for i in listed if 0 <= i < count))
    kept, mixed = tuple(found[:2]), tuple(found[2:])
    for place, (before, behind) in enumerate(zip(kept, mixed, strict=True)):
        if behind and min(behind) < min(before, default=count):
            raise refuse(config, f"bskcn_{place + 3}", f"mixes what bskcn_{place + 1} has kept")
    shares = config.get("bskcn_tv")
    if not isinstance(shares, list) or len(shares) != 2 or type(shares[1]) not in (int, float):
        raise refuse(config, "bskcn_tv", "needs two numbers, of training and of use")
    if not 0 <= shares[1] <= 1:
        raise refuse(config, "bskcn_tv", "needs shares between 0 and 1")
    return Skips(kept, mixed, float(shares[1]))


class SolarDecoder(DenseDecoder):
    """See `DenseDecoder`.

    Raises:
        ConfigError: Stages are to divide the layers.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, skips: Skips) -> None:
        refuse_stages(ctx, "layers of this model take the residual of earlier ones")
        self._skips = skips
        super().__init__(spec, ctx)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        """Build the layers one by one, and norms of what is mixed."""
        mixers: dict[int, Mixer] = {}
        layers = [Layer(spec.sized(i), ctx, i, rotaries, mixers) for i in own]
        for i, layer, behind in zip(own, layers, [*layers[1:], None], strict=True):
            layer.join(spec, ctx, i, behind)
        name, quant = norm_before(spec, own.start, layers[0])
        self._first_norm, self.layers = build_norm(spec, ctx, name, quant), [*layers]
        self._norms = {
            i: build_norm(spec, ctx, *norm_before(spec, i, layers[i]))
            for i in sorted(frozenset().union(*self._skips.mixed))
        }

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        residual, normed, skips = hidden, None, self._skips
        kept: dict[int, Tensor] = {}
        for i, layer in enumerate(self.layers):
            for place, layers in enumerate(skips.kept):
                if i in layers:
                    kept[place] = residual.clone()  # which norms overwrite
            for place, layers in enumerate(skips.mixed):
                if i in layers:
                    residual = residual.mul(1 - skips.share).add_(kept[place], alpha=skips.share)
            if i == 0 or i in self._norms:
                norm = self._norms.get(i, self._first_norm)
                assert norm is not None
                normed = norm(residual)
            keep = batch.outputs_at if i + 1 == len(self.layers) else None
            normed, residual = layer(normed, residual, batch, keep)
        assert isinstance(normed, Tensor)
        return normed
