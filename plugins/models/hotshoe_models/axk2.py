"""A.X K2: DeepSeek V3.2's sparse attention with a gate for each channel, and norms with gates.

A norm's result is scaled by the sigmoid of what two small matrices make of it. Defaults are those
of transformers' AXK2Config.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.layers import BuildContext, ForwardBatch, Linear, Matrix, Rotary, Rotation
from hotshoe.models import ModelConfig
from hotshoe.slots import Quantized
from hotshoe_models.decoder import DenseDecoder, Layer
from hotshoe_models.deepseek_v32 import sparse_spec
from hotshoe_models.mixers import Mixer
from hotshoe_models.mixtures import with_expert_defaults
from hotshoe_models.mlps import MLP
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import refuse

DEFAULTS = {
    "vocab_size": 163840,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 128,
    "q_lora_rank": 384,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "qk_nope_head_dim": 64,
    "n_group": None,
    "topk_group": None,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "mlp_layer_types": None,
    "attention_bias": False,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 16,
    "head_dim": 64,
    "layer_types": None,
    "gated_norm_rank": 16,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build AXK2ForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    if config.get("moe_layer_freq", 1) != 1:
        raise refuse(config, "moe_layer_freq", "has experts in every layer behind the dense ones")
    if config.get("n_group") is None:  # all experts are of one group
        config = replace(config, values={**config.values, "n_group": 1, "topk_group": 1})
    rank = config.size("gated_norm_rank")
    spec = sparse_spec(config, ctx, ["indexed"] * config.size("num_hidden_layers"))
    assert spec.latent is not None
    gated = replace(spec.names, input_norm=f"{spec.names.input_norm}.norm")
    both = replace(gated, mlp_norm=f"{spec.names.mlp_norm}.norm")
    layers = tuple(replace(layer, names=both if layer.mixture else gated) for layer in spec.layers)
    spec = replace(spec, layers=layers, latent=replace(spec.latent, gated=True))
    return GatedDecoder(spec, ctx, rank)


class GatedDecoder(DenseDecoder):
    """See `DenseDecoder`.

    Args:
        rank: Channels between the two matrices of a norm's gate.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, rank: int) -> None:
        self._rank = rank
        super().__init__(spec, ctx)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        """Build this stage's layers, whose mixers and experts take what gates have scaled."""
        super()._build_layers(spec, ctx, own, rotaries)
        for i, layer in zip(own, self.layers, strict=True):
            assert isinstance(layer, Layer)
            prefix, sizes = spec.names.layer.format(i), (spec.hidden_size, self._rank)
            layer.mixer = GatedMixer(layer.mixer, NormGate(ctx, f"{prefix}input_layernorm", *sizes))
            if spec.layers[i].mixture is not None:
                assert layer.mlp is not None
                gate = NormGate(ctx, f"{prefix}post_attention_layernorm", *sizes)
                layer.mlp = GatedBlock(layer.mlp, gate)


class NormGate:
    """x * sigmoid(up(silu(down(x)))) of what a norm has put out; every rank has all of it."""

    def __init__(self, ctx: BuildContext, name: str, size: int, rank: int) -> None:
        parts = (("W_down", rank, size), ("W_up", size, rank))
        self._down, self._up = (
            Linear(ctx, Matrix(ctx, [(f"{name}.{part}", rows)], columns, quantize=False))
            for part, rows, columns in parts
        )

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        """Map [num_tokens, size] to a new tensor of the same shape."""
        assert isinstance(x, Tensor)
        gate = self._up(functional.silu(self._down(x)))
        return x * torch.sigmoid(gate.float()).to(x.dtype)


class GatedMixer:
    """See `hotshoe_models.mixers.Mixer`."""

    input_quant = None

    def __init__(self, mixer: Mixer, gate: NormGate) -> None:
        self._mixer, self._gate = mixer, gate

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        return self._mixer(self._gate(hidden), batch, keep)


class GatedBlock:
    """Experts behind a norm with a gate."""

    input_quant = None

    def __init__(self, mlp: MLP, gate: NormGate) -> None:
        self._mlp, self._gate = mlp, gate

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        """Map [num_tokens, hidden_size] to a new tensor of the same shape."""
        return self._mlp(self._gate(x))
