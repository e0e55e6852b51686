"""How much of a model a step reads and computes: what a device can reach at most.

Everything follows from `config.json`: the products of dense and expert layers, the bytes of keys
and values. Element-wise work, norms and routing count nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Bytes of one element of keys, values and of the product that makes logits.
BF16 = 2


@dataclass(frozen=True)
class Model:
    """The dimensions that decide a step's least time."""

    vocab: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    chosen: int
    weight_bits: float = 16

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BF16

    def layer_parameters(self, experts: float) -> float:
        """Return the elements of one layer's matrices, with so many experts."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return attention + experts * 3 * self.hidden * self.intermediate

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of a dense layer's matrices, by the names that Llama has for them."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        up = (self.intermediate, self.hidden)
        return {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
            "mlp.gate_proj": up,
            "mlp.up_proj": up,
            "mlp.down_proj": up[::-1],
        }

    def read_experts(self, num_tokens: int) -> float:
        """Return the expected number of experts that tokens choose, if each draws alone."""
        if not self.experts:
            return 1
        return self.experts * (1 - (1 - self.chosen / self.experts) ** num_tokens)

    def step_bytes(self, batch: int, context: int) -> float:
        """Return the bytes that a decode step reads."""
        elements = self.layers * self.layer_parameters(self.read_experts(batch))
        layers = elements * self.weight_bits / 8
        return layers + self.vocab * self.hidden * BF16 + batch * context * self.kv_bytes

    def prompt_flops(self, num_tokens: int) -> float:
        """Return the operations that a prompt takes: products, and causal attention over it."""
        products = 2 * num_tokens * self.layers * self.layer_parameters(self.chosen or 1)
        return products + 2 * num_tokens**2 * self.layers * self.heads * self.head_dim


#: Bits of a weight with its scales and zero points, by the name of an online quantization.
ONLINE_BITS = {"int4": 6.0, "int4_64": 5.0, "int4_128": 4.5, "int4_mixed": 6.0}


def bits_of(config: dict[str, Any], online: str) -> float:
    """Return the bits of a weight, those of its group's scale and zero point included."""
    stored = config.get("quantization_config", {})
    if "bits" in stored:
        return float(stored["bits"] + 32 / stored["group_size"])
    return ONLINE_BITS.get(online, 8.0) if online else 16.0


def read_model(folder: Path, online: str = "") -> Model:
    """Read the dimensions of a decoder from its `config.json`; online: how it is quantized."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    experts = config.get("num_experts", 0)
    return Model(
        vocab=config["vocab_size"],
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["moe_intermediate_size" if experts else "intermediate_size"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        experts=experts,
        chosen=config.get("num_experts_per_tok", 0),
        weight_bits=bits_of(config, online),
    )
