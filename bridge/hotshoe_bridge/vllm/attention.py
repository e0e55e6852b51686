"""Attention of vLLM: its backend `CUSTOM`, over blocks of its cache in a candidate's own layout.

That engine gives each layer a piece of memory and addresses it by block ids. Its transfers of
blocks between engines read that memory by its own layout, so the backend refuses them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import KVCacheLayout

from hotshoe.slots import AttentionSpec, CacheView, StepShape
from hotshoe_bridge.operations import DTYPES
from hotshoe_bridge.paged import Paged, Step
from hotshoe_bridge.vllm import operations


class Backend(AttentionBackend):  # type: ignore[misc]
    """What that engine asks before it takes this attention for a layer."""

    supported_dtypes: ClassVar[list[torch.dtype]] = list(DTYPES)
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto"]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        """Return the member of that engine's list that is free for others."""
        return "CUSTOM"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Return what divides all block sizes that candidates read."""
        return [MultipleOf(16)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """Return the layout in which a layer's memory is one piece, block after block."""
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_sink(cls) -> bool:
        """Learned logits in the denominator are part of the slot."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Windows are part of the slot."""
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        """No: those read blocks in that engine's layout."""
        return False

    @staticmethod
    def get_impl_cls() -> type[Attention]:
        """Return a layer's part."""
        return Attention

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        """Return a step's part."""
        return Builder


class Builder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Makes of that engine's description of a step ours."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Step:
        """Describe a step to candidates. Lengths come to the host here, once a step."""
        m = common_attn_metadata
        if m.causal is not True:
            raise ValueError("hotshoe-bridge: attention that is not causal is that engine's own")
        reqs, tokens = m.num_reqs, m.num_actual_tokens
        starts = m.query_start_loc_cpu[: reqs + 1].tolist()
        queries = [end - start for start, end in pairwise(starts)]
        lens = m.seq_lens[:reqs].int()
        lengths = lens.tolist()
        shape = StepShape(
            reqs,
            m.query_start_loc[: reqs + 1].int(),
            lens,
            max(queries),
            max(lengths),
            host_lens=(queries, lengths),
        )
        view = CacheView(m.block_table_tensor[:reqs].int(), _slots(m.slot_mapping[:tokens]))
        return Step(shape, view, tokens)


class Attention(AttentionImpl):  # type: ignore[misc]
    """One layer's attention, chosen when its memory is known."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        if alibi_slopes is not None or attn_type != AttentionType.DECODER:
            raise ValueError(
                "hotshoe-bridge: no slot is attention with ALiBi, or of an encoder; choose another "
                "attention backend for this model"
            )
        if kv_cache_dtype != "auto":
            raise ValueError(f"hotshoe-bridge: kv_cache_dtype is {kv_cache_dtype!r}; use 'auto'")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window, self.logits_soft_cap = sliding_window, logits_soft_cap
        self.kv_cache_dtype, self.attn_type = kv_cache_dtype, attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self._mixed = _mixed()
        self._paged: Paged | None = None
        self._sinks: Tensor | None = None

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write this step's keys and values [tokens, heads, head_size]."""
        n = len(slot_mapping)
        paged = self._of(kv_cache, key.dtype)
        paged.write(key[:n], value[:n], kv_cache, _slots(slot_mapping))

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Step | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Attend with query [tokens, heads, head_size] into the output of the same shape."""
        if output_scale is not None or output_block_scale is not None:
            raise ValueError("hotshoe-bridge: attention does not quantize what it returns")
        if attn_metadata is None:  # while that engine measures memory
            return output
        n = attn_metadata.num_tokens
        paged = self._of(kv_cache, query.dtype)
        if self.sinks is not None and self._sinks is None:
            self._sinks = self.sinks.float()
        output[:n] = paged(query[:n], kv_cache, attn_metadata, self._sinks)
        return output

    def _of(self, memory: Tensor, dtype: torch.dtype) -> Paged:
        """Choose the operations at the first step, which tells the block size."""
        if self._paged is None:
            spec = AttentionSpec(
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_size,
                dtype=DTYPES[dtype],
                kv_dtype=DTYPES[memory.dtype],
                block_size=memory.shape[2],
                scale=self.scale,
                window=self.sliding_window,
                softcap=self.logits_soft_cap or None,
                sinks=self.sinks is not None,
            )
            self._paged = Paged(spec, operations(), self._mixed)
        return self._paged


def _slots(slots: Tensor) -> Tensor:
    """Return int32 slots; what is padding goes to the first block, which that engine keeps free."""
    return slots.clamp(min=0).int()


def _mixed() -> bool:
    """Tell whether layers with states share blocks with attention."""
    from vllm.config import get_current_vllm_config

    model = get_current_vllm_config().model_config
    return bool(getattr(model, "is_hybrid", False))
