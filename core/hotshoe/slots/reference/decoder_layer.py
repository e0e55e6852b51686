"""References of slots `decoder_layer` and `model_step`: the references of their parts in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.layer_specs import DecoderLayerSpec, ModelStepSpec
from hotshoe.slots.operations import renewed
from hotshoe.slots.reference.activation import build as build_activation
from hotshoe.slots.reference.attention import Attention
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.linear import Linear
from hotshoe.slots.reference.norm import rms_norm
from hotshoe.slots.reference.rotary import RotaryAndCache
from hotshoe.slots.specs import GatedActivationSpec, RotaryAndCacheSpec
from hotshoe.slots.step import CacheView
from hotshoe.slots.whole import LayerContext


class DecoderLayer:
    """See `hotshoe.slots.DecoderLayerOp`."""

    layout = Attention.layout
    prepare = staticmethod(Attention.prepare)

    def __init__(self, spec: DecoderLayerSpec, facts: DeviceFacts) -> None:
        self._spec, self._device = spec, facts.device
        self._products = {name: Linear(part, facts) for name, part in spec.matrices.items()}
        inner = GatedActivationSpec(spec.mlp.down.in_features, spec.mlp.activation, spec.dtype)
        self._activation = build_activation(inner, facts)
        self._attention = Attention(spec.attention, facts)
        self._write = RotaryAndCache(_written(spec), facts)
        self._vectors: dict[str, Tensor] = {}
        self._context = LayerContext()

    def load(self, part: str, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        if part in self._products:
            self._products[part].load(tensors)
            return
        dtype = torch.float32 if part == "sinks" else torch_dtype(self._spec.dtype)
        fresh = tensors["weight"][0].to(self._device, dtype, copy=True)
        self._vectors[part] = renewed(self._vectors.get(part), fresh)

    def bind(self, context: LayerContext) -> None:
        self._context = context

    def product(self, part: str, x: Tensor) -> Tensor:
        return self._products[part](x)

    def __call__(
        self, x: Tensor, cache: Tensor, positions: Tensor, slot_mapping: Tensor, prepared: Any
    ) -> Tensor:
        held, table = self._vectors, self._context.cos_sin
        norms = (held["q_norm"], held["k_norm"]) if "q_norm" in held else None
        qkv = self._product("qkv", self._norm("input_norm", x))
        q = self._write(qkv, positions, table, cache, slot_mapping, norms)
        attended = self._attention(q, cache, prepared, held.get("sinks"))
        x = x + self._sum(self._product("o", attended))
        inner = self._activation(self._product("gate_up", self._norm("mlp_norm", x)))
        assert isinstance(inner, Tensor)
        return x + self._sum(self._product("down", inner))

    def _norm(self, part: str, x: Tensor) -> Tensor:
        return rms_norm(x, self._vectors[part], self._spec.norm_eps, self._spec.norm_offset)

    def _product(self, part: str, x: Tensor) -> Tensor:
        y = self._products[part](x)
        if part in self._context.adapted:
            self._context.adapted[part](y, x)
        return y

    def _sum(self, y: Tensor) -> Tensor:
        add_up = self._context.add_up
        return y if add_up is None else add_up(y, y)

    def state(self) -> dict[str, Tensor]:
        held = {f"{part}.weight": vector for part, vector in self._vectors.items()}
        for part, product in self._products.items():
            held |= {f"{part}.{name}": tensor for name, tensor in product.state().items()}
        return held

    def nbytes(self) -> int:
        vectors = sum(vector.nbytes for vector in self._vectors.values())
        return vectors + sum(product.nbytes() for product in self._products.values())


class ModelStep:
    """See `hotshoe.slots.ModelStepOp`."""

    def __init__(self, spec: ModelStepSpec, facts: DeviceFacts) -> None:
        self.layers = [DecoderLayer(layer, facts) for layer in spec.each()]

    def __call__(
        self, x: Tensor, caches: Sequence[Tensor], positions: Tensor, views: Sequence[CacheView]
    ) -> Tensor:
        for layer, cache, view in zip(self.layers, caches, views, strict=True):
            x = layer(x, cache, positions, view.slot_mapping, view.prepared)
        return x


def _written(spec: DecoderLayerSpec) -> RotaryAndCacheSpec:
    """Return what writes the layer's cache, in the layout that the reference reads."""
    attention = spec.attention
    sizes = (attention.num_heads, attention.num_kv_heads, attention.head_dim, spec.rotary_dim)
    kept = (attention.dtype, attention.kv_dtype, attention.block_size, Attention.layout)
    return replace(
        RotaryAndCacheSpec(*sizes, *kept, spec.interleaved),
        qk_norm_eps=spec.qk_norm_eps,
        qk_norm_offset=spec.qk_norm_offset,
        kv_scales=attention.kv_scales,
        v_head_dim=attention.v_head_dim,
    )
