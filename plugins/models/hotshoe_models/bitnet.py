"""BitNet b1.58: norms in front of the last matrix of attention and of the MLP, and gates of squared
ReLU, or of SiLU in its first models.

Published files have matrices of three values, which format `bitnet` reads. Defaults are those of
transformers' BitNetConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    DividedRMSNorm,
    ForwardBatch,
    Linear,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.models import ModelConfig
from hotshoe.slots import Quantized
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixers import AttentionMixer
from hotshoe_models.mlps import mlp_matrices
from hotshoe_models.norms import build_add_norm, plain_norm
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import activation, decoder_spec, flag, layer_specs, with_defaults

DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 30,
    "num_attention_heads": 20,
    "num_key_value_heads": 5,
    "hidden_act": "relu2",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_parameters": None,
}
DEFAULT_THETA = 500_000.0
#: What gates go through, by the name of it.
GATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu2": lambda gate: torch.relu(gate).square_(),
    "silu": torch.nn.functional.silu,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build BitNetForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    gate = activation(config, "hidden_act", {name: name for name in GATES})
    bias = flag(config, "attention_bias")
    layers = layer_specs(config, ctx, default_theta=DEFAULT_THETA)
    spec = decoder_spec(config, layers, activation=gate, qkv_bias=bias, o_bias=bias)
    return BitNetDecoder(spec, ctx)


class BitNetDecoder(DenseDecoder):
    """See `DenseDecoder`."""

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        """Build this stage's layers, which have their norms themselves."""
        self._first_norm = None
        self.layers = [BitNetLayer(spec, ctx, i, rotaries) for i in own]


class BitNetLayer:
    """Norm, attention, norm and MLP, each of the two added to the residual."""

    input_quant = None

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: dict[Rotation, Rotary]
    ) -> None:
        prefix, names = spec.names.layer.format(i), spec.names
        self._mixer = _Mixer(spec, ctx, i, rotaries)
        self._mlp = _MLP(spec, ctx, i)
        self._input_norm = plain_norm(spec, ctx, f"{prefix}{names.input_norm}")
        self._mlp_norm = build_add_norm(spec, ctx, f"{prefix}{names.mlp_norm}", None, 1.0)
        last = i + 1 == len(spec.layers)
        self._final = build_add_norm(spec, ctx, names.final_norm if last else None, None, 1.0)

    def __call__(
        self, hidden: Tensor | Quantized, residual: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """See `hotshoe_models.decoder.Layer`; `hidden` is not read."""
        out = self._mixer(self._input_norm(residual), batch, keep)
        residual = residual if keep is None else residual[keep]
        normed, residual = self._mlp_norm(out, residual)
        assert isinstance(normed, Tensor)
        return self._final(self._mlp(normed), residual)


class _Mixer(AttentionMixer):
    """Attention whose result is normed over all heads, in front of the output projection."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
    ) -> None:
        super().__init__(spec, ctx, i, rotaries)
        name = f"{spec.names.layer.format(i)}self_attn.attn_sub_norm"
        heads = ctx.split("attention heads", Section(spec.num_heads, spec.head_dim))
        whole = spec.num_heads * spec.head_dim
        self._sub_norm = DividedRMSNorm(ctx, name, whole, heads, spec.norm_eps)

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `hotshoe_models.mixers.Mixer`."""
        out = self.attention(self._qkv(hidden), batch)
        return self._o(self._sub_norm(out if keep is None else out[keep]))


class _MLP:
    """down(norm(act(gate) * up)), gate | up = gate_up(x)."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int) -> None:
        self._activation = GATES[spec.activation]
        up, down = mlp_matrices(spec, ctx, i)
        self._up, self._down = Linear(ctx, up), Linear(ctx, down)
        width = spec.intermediate_size
        channels = ctx.split("channels between MLP matrices", Section(width))
        name = f"{spec.names.layer.format(i)}mlp.ffn_sub_norm"
        self._norm = DividedRMSNorm(ctx, name, width, channels, spec.norm_eps)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, hidden_size] to the same shape."""
        gate, up = self._up(x).chunk(2, -1)
        return self._down(self._norm(self._activation(gate).mul_(up)))
