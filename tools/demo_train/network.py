"""The network in training form: a Qwen3 decoder whose parameter names are the checkpoint's.

Attention stays inside one document of a packed row.  No generation, no cache: evaluation uses
transformers on the exported checkpoint, which also proves that the export is right.
Shape letters: B rows, T tokens, H heads, K key/value heads, D head size, E hidden size.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Mask = BlockMask | Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes of the network, under the names that config.json uses."""

    vocab_size: int = 8192
    hidden_size: int = 384
    intermediate_size: int = 1024
    num_hidden_layers: int = 9
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0

    def config(self, end_of_text: int, turn_end: int) -> dict[str, Any]:
        """Return the contents of config.json."""
        return asdict(self) | {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
            "bos_token_id": None,
            "eos_token_id": turn_end,
            "pad_token_id": end_of_text,
            "use_cache": True,
        }


class Norm(nn.Module):
    """Root mean square normalisation over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise in float32; the result has the input's dtype."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps).to(x.dtype)


def rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Apply rotary position embedding in the half-split layout."""
    left, right = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cos_TD + torch.cat((-right, left), dim=-1) * sin_TD


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.shape = s
        q_size, kv_size = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
        self.q_proj = nn.Linear(s.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, s.hidden_size, bias=False)
        self.q_norm = Norm(s.head_dim, s.rms_norm_eps)
        self.k_norm = Norm(s.head_dim, s.rms_norm_eps)

    def forward(self, x_BTE: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        """Attend within documents."""
        rows, length, _ = x_BTE.shape
        split = (rows, length, -1, self.shape.head_dim)
        q = rotate(self.q_norm(self.q_proj(x_BTE).view(split)).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x_BTE).view(split)).transpose(1, 2), cos, sin)
        v = self.v_proj(x_BTE).view(split).transpose(1, 2)
        if isinstance(mask, Tensor):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        else:
            out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class GatedMlp(nn.Module):
    """SiLU-gated feed-forward network."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.up_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.down_proj = nn.Linear(s.intermediate_size, s.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each token."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        self.mlp = GatedMlp(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        """Add attention, then the feed-forward network."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and final norm; the attribute names make the checkpoint's names."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.num_hidden_layers))
        self.norm = Norm(s.hidden_size, s.rms_norm_eps)


class Network(nn.Module):
    """The model with its loss; the output projection is the embedding."""

    cos: Tensor
    sin: Tensor

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.model = Decoder(s)
        inverse = s.rope_theta ** -(torch.arange(0, s.head_dim, 2).double() / s.head_dim)
        angles = torch.arange(s.max_position_embeddings).double()[:, None] * inverse
        both = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", both.cos().bfloat16(), persistent=False)
        self.register_buffer("sin", both.sin().bfloat16(), persistent=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                deviation = 0.02 if "embed" in name else 0.6 * parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, std=deviation)

    def forward(self, tokens: Tensor, targets: Tensor, weights: Tensor, mask: Mask) -> Tensor:
        """Return the weighted mean cross entropy; tokens, targets and weights are `[B, T]`."""
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight).float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return (losses * weights.flatten()).sum() / weights.sum()


def document_mask(documents: Tensor, compiled: bool) -> Mask:
    """Build the mask that is causal and stays inside a document.

    Args:
        documents: `[B, T]` integers, equal within one document of a row.
        compiled: Build a block mask for compiled flex attention, which makes no `[B, T, T]`
            tensor; otherwise a `[B, 1, T, T]` tensor of booleans, as a CPU needs.
    """

    def visible(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (documents[b, q] == documents[b, k])

    rows, length = documents.shape
    if compiled:
        build = _compiled_block_mask()
        return build(visible, rows, None, length, length, device=documents.device.type)
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return same & torch.ones(length, length, dtype=torch.bool).tril()


@cache
def _compiled_block_mask() -> Callable[..., BlockMask]:
    """Compile once, and only where it is used: importing the compiler takes long."""
    return torch.compile(create_block_mask)
