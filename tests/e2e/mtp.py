"""Tiny checkpoints with a layer that predicts further tokens, and plain float64 code for them.

Of MiMo's layout, and written from its description alone: nothing here is Hotshoe's.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.e2e.plain import EPS, THETA, attended, norm
from torch import Tensor

VOCAB, SIZE, INNER, HEADS, KV_HEADS, LAYERS = 256, 64, 96, 4, 2, 2
DIM = SIZE // HEADS
CONFIG = {
    "architectures": ["MiMoForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": SIZE,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "torch_dtype": "float32",
    "num_nextn_predict_layers": 1,
}
HEAD = "model.mtp_layers.0."
Weights = dict[str, Tensor]


def shapes() -> dict[str, tuple[int, ...]]:
    """Return all tensors of the checkpoint."""
    layer = {
        "input_layernorm.weight": (SIZE,),
        "post_attention_layernorm.weight": (SIZE,),
        "self_attn.q_proj.weight": (SIZE, SIZE),
        "self_attn.k_proj.weight": (KV_HEADS * DIM, SIZE),
        "self_attn.v_proj.weight": (KV_HEADS * DIM, SIZE),
        "self_attn.q_proj.bias": (SIZE,),
        "self_attn.k_proj.bias": (KV_HEADS * DIM,),
        "self_attn.v_proj.bias": (KV_HEADS * DIM,),
        "self_attn.o_proj.weight": (SIZE, SIZE),
        "mlp.gate_proj.weight": (INNER, SIZE),
        "mlp.up_proj.weight": (INNER, SIZE),
        "mlp.down_proj.weight": (SIZE, INNER),
    }
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, SIZE),
        "lm_head.weight": (VOCAB, SIZE),
        "model.norm.weight": (SIZE,),
        f"{HEAD}token_layernorm.weight": (SIZE,),
        f"{HEAD}hidden_layernorm.weight": (SIZE,),
        f"{HEAD}final_layernorm.weight": (SIZE,),
        f"{HEAD}input_proj.weight": (SIZE, 2 * SIZE),
    }
    for prefix in [*(f"model.layers.{i}." for i in range(LAYERS)), HEAD]:
        found |= {prefix + name: shape for name, shape in layer.items()}
    return found


def random_weights(seed: int) -> Weights:
    """Return weights of which each counts."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes().items():
        values = torch.randn(shape, generator=generator)
        scale = 0.2 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
        found[name] = values * scale + (name.endswith("norm.weight"))
    return found


def chain_weights(seed: int, strange: float = 0.0) -> Weights:
    """Return weights by which each token alone says the next, as the further layer knows.

    Args:
        seed: Of what follows what.
        strange: How much the decoder heeds older tokens, unlike the further layer.
    """
    generator = torch.Generator().manual_seed(seed)
    found = random_weights(seed)
    for name, tensor in found.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= 0.0 if name.startswith(HEAD) or "down" in name else strange
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
    vectors = torch.nn.functional.normalize(torch.randn(VOCAB, SIZE, generator=generator))
    found["model.embed_tokens.weight"] = vectors
    found["lm_head.weight"] = torch.empty_like(vectors)
    found["lm_head.weight"][torch.randperm(VOCAB, generator=generator)] = vectors
    found[f"{HEAD}input_proj.weight"] = torch.cat([torch.zeros(SIZE, SIZE), torch.eye(SIZE)], 1)
    return found


def write(path: Path, weights: Weights, **changes: object) -> Path:
    """Write a checkpoint into a directory."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()},
        str(path / "model.safetensors"),
    )
    return path


def states(weights: Weights, ids: Sequence[int]) -> Tensor:
    """Return the decoder's normed hidden states, [len(ids), SIZE] float64."""
    x = weights["model.embed_tokens.weight"].double()[list(ids)]
    for i in range(LAYERS):
        x = block(weights, f"model.layers.{i}.", x)
    return norm(x, weights["model.norm.weight"])


def drafts(weights: Weights, ids: Sequence[int], count: int) -> list[list[int]]:
    """Return, for each draft behind ids, the tokens whose logits are within rounding of the best.

    The further layer reads the state of each token and the token behind it. Where those are over,
    it reads its own last result and its own last guess; the chain ends where several are likely.
    """
    hidden, known = states(weights, ids[:-1]), list(ids)
    found: list[list[int]] = []
    while len(found) < count:
        embedded = weights["model.embed_tokens.weight"].double()[known[1:]]
        parts = [
            norm(hidden, weights[f"{HEAD}hidden_layernorm.weight"]),
            norm(embedded, weights[f"{HEAD}token_layernorm.weight"]),
        ]
        x = torch.cat(parts, 1) @ weights[f"{HEAD}input_proj.weight"].double().T
        out = norm(block(weights, HEAD, x), weights[f"{HEAD}final_layernorm.weight"])
        logits = out[-1] @ weights["lm_head.weight"].double().T
        best = (logits >= logits.max() - 1e-4 * logits.abs().max()).nonzero().flatten().tolist()
        found.append(best)
        if len(best) > 1:
            break
        known += best
        hidden = torch.cat([hidden, out[-1:]])
    return found


def block(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    """Run one layer over all tokens x [n, SIZE]."""
    own = {n.removeprefix(prefix): t.double() for n, t in weights.items() if n.startswith(prefix)}
    count = len(x)
    normed = norm(x, own["input_layernorm.weight"])

    def heads(name: str) -> Tensor:
        y = normed @ own[f"self_attn.{name}_proj.weight"].T + own[f"self_attn.{name}_proj.bias"]
        return y.view(count, -1, DIM).transpose(0, 1)

    x = x + attended(*map(heads, "qkv")) @ own["self_attn.o_proj.weight"].T
    normed = norm(x, own["post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(normed @ own["mlp.gate_proj.weight"].T)
    return x + (gate * (normed @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
