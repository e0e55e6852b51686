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
FURTHER = "model.mtp_layers.{}."
HEAD = FURTHER.format(0)
Weights = dict[str, Tensor]


def shapes(further: int = 1) -> dict[str, tuple[int, ...]]:
    """Return all tensors of the checkpoint, with so many layers behind."""
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
    }
    heads = [FURTHER.format(i) for i in range(further)]
    for prefix in heads:
        found |= {
            f"{prefix}{name}_layernorm.weight": (SIZE,) for name in ("token", "hidden", "final")
        }
        found[f"{prefix}input_proj.weight"] = (SIZE, 2 * SIZE)
    for prefix in [*(f"model.layers.{i}." for i in range(LAYERS)), *heads]:
        found |= {prefix + name: shape for name, shape in layer.items()}
    return found


def random_weights(seed: int, further: int = 1) -> Weights:
    """Return weights of which each counts."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes(further).items():
        values = torch.randn(shape, generator=generator)
        scale = 0.2 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
        found[name] = values * scale + (name.endswith("norm.weight"))
    return found


def chain_weights(seed: int, strange: float = 0.0, further: int = 1) -> Weights:
    """Return weights by which each token alone says the next, as further layers know.

    Args:
        seed: Of what follows what.
        strange: How much the decoder heeds older tokens, unlike a further layer.
        further: How many such layers.
    """
    generator = torch.Generator().manual_seed(seed)
    found = random_weights(seed, further)
    for name, tensor in found.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= 0.0 if name.startswith(FURTHER[:-3]) or "down" in name else strange
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
    vectors = torch.nn.functional.normalize(torch.randn(VOCAB, SIZE, generator=generator))
    found["model.embed_tokens.weight"] = vectors
    found["lm_head.weight"] = torch.empty_like(vectors)
    found["lm_head.weight"][torch.randperm(VOCAB, generator=generator)] = vectors
    for i in range(further):
        join = torch.cat([torch.zeros(SIZE, SIZE), torch.eye(SIZE)], 1)
        found[f"{FURTHER.format(i)}input_proj.weight"] = join
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


def drafts(weights: Weights, ids: Sequence[int], count: int, further: int = 1) -> list[list[int]]:
    """Return, for each draft behind ids, the tokens whose logits are within rounding of the best.

    The first layer reads the state of each token and the token behind it. Each other layer reads
    what the one before it made one token earlier, and the token behind; in front of the first token
    stand zeros. The k-th draft is the k-th layer's; the last layer goes on from its own results.
    The chain ends where several tokens are likely.
    """
    known = list(ids)
    made: list[Tensor] = [states(weights, ids[:-1])]  # what each layer reads, one token further
    found: list[list[int]] = []
    while len(found) < count:
        i = min(len(found), further - 1)
        hidden = made[-1]
        out = layer(weights, FURTHER.format(i), hidden, known[1:])
        logits = out[-1] @ weights["lm_head.weight"].double().T
        best = (logits >= logits.max() - 1e-4 * logits.abs().max()).nonzero().flatten().tolist()
        found.append(best)
        if len(best) > 1:
            break
        known += best
        if i < further - 1:
            made.append(torch.cat([out.new_zeros(1, SIZE), out]))
        else:
            made.append(torch.cat([hidden, out[-1:]]))
    return found


def layer(weights: Weights, prefix: str, hidden: Tensor, known: Sequence[int]) -> Tensor:
    """Return what a further layer makes of states [n, SIZE] and the n tokens behind them."""
    embedded = weights["model.embed_tokens.weight"].double()[list(known)]
    parts = [
        norm(hidden, weights[f"{prefix}hidden_layernorm.weight"]),
        norm(embedded, weights[f"{prefix}token_layernorm.weight"]),
    ]
    x = torch.cat(parts, 1) @ weights[f"{prefix}input_proj.weight"].double().T
    return norm(block(weights, prefix, x), weights[f"{prefix}final_layernorm.weight"])


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
