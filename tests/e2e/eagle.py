"""Tiny models with EAGLE heads beside them, and plain float64 code for both.

Written from the published description alone: nothing here is Hotshoe's. The head's attention looks
at its own token, so that it says what follows in a model that heeds older tokens little.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.e2e.plain import EPS, THETA, attended, norm
from torch import Tensor

VOCAB, SIZE, INNER, HEADS, KV_HEADS, LAYERS, DRAFTED = 256, 64, 96, 4, 2, 4, 200
DIM = SIZE // HEADS
TAPPED = [1, 2, 3]
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": SIZE,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "max_position_embeddings": 256,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "torch_dtype": "float32",
}
MODELS = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
HEAD_CONFIGS = {
    "eagle": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1},
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFTED,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in TAPPED]},
    },
    "medusa": {"architectures": ["MedusaModel"], "num_heads": 3, "num_hidden_layers": 1},
}
Weights = dict[str, Tensor]


def layer_shapes(inputs: int = SIZE) -> dict[str, tuple[int, ...]]:
    return {
        "self_attn.q_proj.weight": (HEADS * DIM, inputs),
        "self_attn.k_proj.weight": (KV_HEADS * DIM, inputs),
        "self_attn.v_proj.weight": (KV_HEADS * DIM, inputs),
        "self_attn.o_proj.weight": (SIZE, HEADS * DIM),
        "mlp.gate_proj.weight": (INNER, SIZE),
        "mlp.up_proj.weight": (INNER, SIZE),
        "mlp.down_proj.weight": (SIZE, INNER),
        "post_attention_layernorm.weight": (SIZE,),
    }


def draw(shapes: dict[str, tuple[int, ...]], generator: torch.Generator) -> Weights:
    """Return random weights, small in front of a residual, and norms about 1."""
    found = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        small = 0.15 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
        scale = 0.2 if len(shape) == 1 else small * shape[-1] ** -0.5
        found[name] = values * scale + (len(shape) == 1)
    return found


def model_weights(kind: str, seed: int) -> Weights:
    """Return a model in which each token almost says the next."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (SIZE,)}
    own = {"input_layernorm.weight": (SIZE,), **layer_shapes()}
    if kind == "qwen3":
        own |= dict.fromkeys(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (DIM,))
    for i in range(LAYERS):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in own.items()}
    found = draw(shapes, generator)
    vectors = torch.nn.functional.normalize(torch.randn(VOCAB, SIZE, generator=generator))
    found["model.embed_tokens.weight"] = vectors
    found["lm_head.weight"] = torch.empty_like(vectors)
    found["lm_head.weight"][torch.randperm(VOCAB, generator=generator)] = vectors
    return found


def head_weights(method: str, model: Weights, seed: int) -> Weights:
    """Return a head that is often right."""
    generator = torch.Generator().manual_seed(seed)
    if method == "medusa":
        return _medusa_weights(model, generator)
    if method == "eagle":
        found = draw({f"layers.0.{n}": s for n, s in layer_shapes().items()}, generator)
        found["fc.weight"] = torch.randn(SIZE, 2 * SIZE, generator=generator) * 0.02
        found["fc.weight"][:, :SIZE] += torch.eye(SIZE)
        found["fc.bias"] = torch.randn(SIZE, generator=generator) * 0.02
        return found
    shapes = {f"midlayer.{name}": shape for name, shape in layer_shapes(2 * SIZE).items()}
    norms = ("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight", "norm.weight")
    found = draw(shapes | dict.fromkeys(norms, (SIZE,)), generator)
    found["fc.weight"] = torch.randn(SIZE, 3 * SIZE, generator=generator) * 0.05
    attention = "midlayer.self_attn."
    for group in range(KV_HEADS):  # which sees a part of the embedding
        own = slice(group * DIM, (group + 1) * DIM)
        for name, factor in (("k", 1.5), ("v", 1.0)):
            found[f"{attention}{name}_proj.weight"][own, own] += factor * torch.eye(DIM)
        for head in range(HEADS // KV_HEADS):
            at = (group * HEADS // KV_HEADS + head) * DIM
            q, o = found[f"{attention}q_proj.weight"], found[f"{attention}o_proj.weight"]
            q[at : at + DIM, own] += 1.5 * torch.eye(DIM)
            o[own, at : at + DIM] += torch.eye(DIM)
    targets = torch.randperm(VOCAB, generator=generator)[:DRAFTED].sort().values
    found["d2t"] = targets - torch.arange(DRAFTED)
    found["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, targets, True)
    found["lm_head.weight"] = model["lm_head.weight"][targets]
    return found


def _medusa_weights(model: Weights, generator: torch.Generator) -> Weights:
    """Return heads that each know what follows one token further on."""
    vectors = model["model.embed_tokens.weight"]
    follows = (model["lm_head.weight"] @ vectors.T).argmax(0)
    found, behind = {}, follows
    for i in range(3):
        behind = follows[behind]
        found[f"blocks.{i}.layers.0.weight"] = torch.randn(SIZE, SIZE, generator=generator) * 0.05
        found[f"blocks.{i}.layers.0.bias"] = torch.randn(SIZE, generator=generator) * 0.1
        found[f"lm_heads.{i}.weight"] = torch.empty_like(vectors)
        found[f"lm_heads.{i}.weight"][behind] = vectors
    return found


def _medusa_drafts(final: Tensor, head: Weights, count: int) -> list[list[int]]:
    found = []
    for i in range(count):
        y = final @ head[f"blocks.{i}.layers.0.weight"].double().T
        x = final + torch.nn.functional.silu(y + head[f"blocks.{i}.layers.0.bias"].double())
        found.append(near_best(head[f"lm_heads.{i}.weight"].double() @ x).tolist())
    return found


def near_best(logits: Tensor) -> Tensor:
    """Return the tokens whose logits are within rounding of the best."""
    return (logits >= logits.max() - 1e-4 * logits.abs().max()).nonzero().flatten()


def write(path: Path, weights: Weights, **values: object) -> Path:
    """Write a checkpoint into a directory."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(SIZES | values))
    file = str(path / "model.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, file)
    return path


def write_model(path: Path, kind: str, weights: Weights, **values: object) -> Path:
    own = {"architectures": [MODELS[kind]], "num_hidden_layers": LAYERS, **values}
    return write(path, weights, **own)


def states(weights: Weights, ids: Sequence[int]) -> list[Tensor]:
    """Return the states in front of each layer, and the normed final ones, [len(ids), SIZE]."""
    x = weights["model.embed_tokens.weight"].double()[list(ids)]
    found = []
    for i in range(LAYERS):
        found.append(x)
        own = part(weights, f"model.layers.{i}.")
        x = block(own, norm(x, own["input_layernorm.weight"]), x)
    return [*found, norm(x, weights["model.norm.weight"])]


def part(weights: Weights, prefix: str) -> Weights:
    return {n.removeprefix(prefix): t.double() for n, t in weights.items() if n.startswith(prefix)}


def step(method: str, head: Weights, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Run a head; return what the next position reads, and what logits are made of.

    Args:
        embedded: [n, SIZE] embeddings of the tokens behind each position.
        hidden: [n, SIZE], joined already for EAGLE-3.
    """
    if method == "eagle":
        joined = torch.cat([embedded, hidden], 1) @ head["fc.weight"].double().T
        joined = joined + head["fc.bias"].double()
        out = block(part(head, "layers.0."), joined, joined)
        return out, out
    own = part(head, "midlayer.")
    parts = [norm(embedded, own["input_layernorm.weight"]), norm(hidden, own["hidden_norm.weight"])]
    out = block(own, torch.cat(parts, 1), hidden)
    return out, norm(out, head["norm.weight"])


def joined(layers: Sequence[Tensor], head: Weights) -> Tensor:
    """Return what an EAGLE-3 head makes of the states that it takes, normed where it has norms."""
    taken = [layers[i] for i in TAPPED]
    if "fc_norm.0.weight" in head:
        taken = [norm(x, head[f"fc_norm.{i}.weight"]) for i, x in enumerate(taken)]
    beside = torch.cat(taken, 1)
    if "input_norm.weight" in head:
        beside = norm(beside, head["input_norm.weight"])
    return beside @ head["fc.weight"].double().T


def drafts(
    method: str,
    model: Weights,
    head: Weights,
    ids: Sequence[int],
    count: int,
    normed_output: bool = False,
) -> tuple[list[list[int]], Tensor]:
    """Return, for each draft behind ids, the tokens whose logits are within rounding of the best,
    and what the first draft's logits are made of. The chain ends where several are likely."""
    *layers, final = states(model, ids[:-1])
    hidden = final
    if method == "medusa":
        return _medusa_drafts(final[-1], head, count), final[-1]
    if method == "eagle3":
        hidden = joined(layers, head)
    known, found, first = list(ids), list[list[int]](), None
    while len(found) < count:
        embedded = model["model.embed_tokens.weight"].double()[known[1:]]
        passed, normed = step(method, head, embedded, hidden)
        passed = normed if normed_output else passed
        first = normed[-1] if first is None else first
        matrix = (head if method == "eagle3" else model)["lm_head.weight"].double()
        near = near_best(matrix @ normed[-1])
        best = (near + head["d2t"][near] if method == "eagle3" else near).tolist()
        found.append(best)
        if len(best) > 1:
            break
        known += best
        hidden = torch.cat([hidden, passed[-1:]])
    assert first is not None
    return found, first


def logits_behind(
    method: str, model: Weights, head: Weights, ids: Sequence[int], path: Sequence[int]
) -> Tensor:
    """Return [VOCAB] a head's logits behind ids and drafts that follow them."""
    *layers, final = states(model, ids[:-1])
    hidden, known = final, list(ids)
    if method == "eagle3":
        hidden = joined(layers, head)
    for draft in (*path, None):
        embedded = model["model.embed_tokens.weight"].double()[known[1:]]
        passed, normed = step(method, head, embedded, hidden)
        known += [] if draft is None else [draft]
        hidden = torch.cat([hidden, passed[-1:]])
    if method == "eagle":
        return model["lm_head.weight"].double() @ normed[-1]
    found = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
    found[head["d2t"] + torch.arange(DRAFTED)] = head["lm_head.weight"].double() @ normed[-1]
    return found


def block(own: Weights, taken: Tensor, residual: Tensor) -> Tensor:
    """Run one layer over all tokens: attention of what is taken, then the MLP."""
    count = len(taken)

    def heads(name: str) -> Tensor:
        y = (taken @ own[f"self_attn.{name}_proj.weight"].T).view(count, -1, DIM).transpose(0, 1)
        weight = own.get(f"self_attn.{name}_norm.weight")
        return y if weight is None else norm(y, weight)

    x = residual + attended(*map(heads, "qkv")) @ own["self_attn.o_proj.weight"].T
    normed = norm(x, own["post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(normed @ own["mlp.gate_proj.weight"].T)
    return x + (gate * (normed @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
