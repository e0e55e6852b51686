"""Plain decoders in float32, for families that no class of transformers is near.

A family's test writes its formula once, over `Drawn`, which makes up each tensor when the formula
first asks for it. What was asked for is the checkpoint.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests.plugins.models.conftest import LENGTH, VOCAB
from tests.plugins.models.test_published import compare
from torch import Tensor
from torch.nn import functional

SIZE, LAYERS, HEADS, KV_HEADS, WIDTH = 64, 3, 4, 2, 96
DIM = SIZE // HEADS
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": SIZE,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": LENGTH,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100.0,
    "tie_word_embeddings": False,
}
Formula = Callable[["Drawn", Tensor], Tensor]


class Drawn(dict[str, Tensor]):
    """Tensors of a checkpoint by name."""

    def of(self, name: str, *shape: int, around: float = 1.0) -> Tensor:
        """Return a tensor: a matrix keeps the size of what it takes, a vector is near a number."""
        if name not in self:
            noise = torch.randn(shape)
            near = noise * 0.3 + around
            self[name] = near if len(shape) == 1 else noise * shape[-1] ** -0.5
        return self[name]

    def linear(self, x: Tensor, name: str, rows: int) -> Tensor:
        """Multiply [n, columns] by a matrix without bias."""
        return x @ self.of(f"{name}.weight", rows, x.shape[-1]).T

    def norm(
        self,
        x: Tensor,
        name: str,
        around: float = 1.0,
        offset: float = 0.0,
        weight: str | None = None,
    ) -> Tensor:
        """Norm the last axis by its root of mean squares."""
        name = f"{name}.weight" if weight is None else weight
        factor = self.of(name, x.shape[-1], around=around) + offset
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * factor

    def mlp(
        self,
        x: Tensor,
        names: tuple[str, str, str],
        width: int = WIDTH,
        act: Callable[[Tensor], Tensor] = functional.silu,
    ) -> Tensor:
        """Compute down(act(gate) * up)."""
        gate, up = (self.linear(x, name, width) for name in names[:2])
        return self.linear(act(gate) * up, names[2], x.shape[-1])


def mlp_names(prefix: str) -> tuple[str, str, str]:
    """Return Llama's names."""
    gate, up, down = (f"{prefix}{part}_proj" for part in ("gate", "up", "down"))
    return gate, up, down


def rotated(x: Tensor, theta: float = 100.0, channels: int | None = None) -> Tensor:
    """Rotate the first channels of [n, heads, dim] by position, pairs half of them apart."""
    dim = x.shape[-1] if channels is None else channels
    angles = torch.arange(len(x))[:, None] * theta ** (-torch.arange(0, dim, 2) / dim)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., : dim // 2], x[..., dim // 2 : dim]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, x[..., dim:]), -1)


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Attend to earlier tokens: [n, heads, dim] and kv heads to [n, heads * dim]."""
    k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    distance = torch.arange(len(q))[:, None] - torch.arange(len(k))
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


def attention(w: Drawn, x: Tensor, prefix: str, kv_heads: int = KV_HEADS, **options: Any) -> Tensor:
    """Attend as Llama does."""
    counts = dict(zip("qkv", (HEADS, kv_heads, kv_heads), strict=True))
    q, k, v = (
        w.linear(x, f"{prefix}{part}_proj", count * DIM).view(len(x), count, DIM)
        for part, count in counts.items()
    )
    return w.linear(attended(rotated(q), rotated(k), v, **options), f"{prefix}o_proj", SIZE)


def routed(
    w: Drawn,
    x: Tensor,
    weights: Tensor,
    names: Callable[[int], tuple[str, str, str]],
    width: int = WIDTH,
    act: Callable[[Tensor], Tensor] = functional.silu,
) -> Tensor:
    """Add up all experts by weights [n, experts], which are 0 where one is not chosen."""
    parts = [w.mlp(x, names(i), width, act) * weights[:, i, None] for i in range(weights.shape[1])]
    return torch.stack(parts).sum(0)


class Plain:
    """See `Checkpoint`."""

    def __init__(self, formula: Formula, drawn: Drawn) -> None:
        self._formula, self.drawn = formula, drawn

    def logits(self, tokens: list[int]) -> Tensor:
        """Return [len(tokens), vocab]."""
        with torch.inference_mode():
            return self._formula(self.drawn, torch.tensor(tokens))


def written(path: Path, config: dict[str, Any], formula: Formula) -> Plain:
    """Write the checkpoint of a formula, and return what computes it."""
    drawn = Drawn()
    with torch.no_grad():
        formula(drawn, torch.arange(5))
    path.mkdir(exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in drawn.items()}, path / "model.safetensors"
    )
    (path / "config.json").write_text(json.dumps(config))
    return Plain(formula, drawn)


def check(path: Path, config: dict[str, Any], formula: Formula, stepper_class: Any) -> None:
    """Compare logits of a prompt in two parts, beside another one, with those of a formula."""
    compare(written(path, config, formula), path, stepper_class)
