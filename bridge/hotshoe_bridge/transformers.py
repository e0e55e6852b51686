"""Host transformers: a model whose norms, products, MLPs and attention run on candidates.

    import hotshoe_bridge.transformers as host
    found = host.install(model, Operations("cpu"))

Attention is registered as implementation `hotshoe` of the library's interface.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hotshoe.slots import AttentionSpec
from hotshoe_bridge.attention import BLOCK_TOKENS, DenseAttention, spans
from hotshoe_bridge.bridge import Bridged, bridge
from hotshoe_bridge.operations import DTYPES, Operations

NAME = "hotshoe"


def install(model: Any, operations: Operations) -> Bridged:
    """Let operations compute what they can of a model, and say what they cannot.

    Args:
        model: A `PreTrainedModel`, in the type and on the device that it will run in.
        operations: Of a platform whose tensors lie where the model's do.
    """
    register(operations)
    found = bridge(model, operations)
    try:
        model.set_attn_implementation(NAME)
    except (ValueError, TypeError) as error:
        found.left["attention"] = f"the model takes no other implementation: {error}"
    else:
        found.served["attention"] = "attention, chosen when it is first called"
    return found


def register(operations: Operations) -> None:
    """Offer attention to the library, with the masks that its own implementation gets."""
    dense = DenseAttention(operations)

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **more: Any,
    ) -> tuple[Tensor, None]:
        if dropout:
            raise ValueError("bridged attention has no dropout; use model.eval()")
        window = more.get("sliding_window")
        (batch, heads, queries, head_dim), (_, kv_heads, keys, _) = query.shape, key.shape
        spec = AttentionSpec(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=DTYPES[query.dtype],
            kv_dtype=DTYPES[query.dtype],
            block_size=BLOCK_TOKENS,
            scale=head_dim**-0.5 if scaling is None else scaling,
            window=window,
            softcap=more.get("softcap"),
            sinks=more.get("s_aux") is not None,
        )
        causal = queries == 1 or getattr(module, "is_causal", True)
        if not causal or value.shape[-1] != head_dim:
            raise ValueError(f"{type(module).__name__} is no causal attention of one head size")
        found = spans(attention_mask, batch, queries, keys, window)
        sinks = more["s_aux"].float() if spec.sinks else None
        return dense(spec, query, key, value, found, sinks), None

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
