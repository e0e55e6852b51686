"""Cases of slot `mla_attention`: a step's rows are written, then paged batches attend to all.

Rows that no request owns are NaN, as are those behind a request's last token. What must come out
is computed in float64 from keys and values of every head, which is neither form of the reference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, MlaAttentionSpec
from hotshoe.slots.reference.rotary import rotate
from hotshoe_conformance.cases.attention import ROUNDED_OPERANDS, Batch
from hotshoe_conformance.cases.base import DTYPES, Cost, Setup, Suite, in_dtype, normal
from hotshoe_conformance.cases.rows import PagedRows, draw_blocks, earlier, grid
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import Close, Expected

SLOT = "mla_attention"
BASE = MlaAttentionSpec(4, 64, 32, 16, 32, "float32", "float32", 16, 48**-0.5)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"num_heads": 1},
    {"num_heads": 7},
    {"num_heads": 16},
    {"latent_dim": 16},
    {"latent_dim": 512},
    {"nope_dim": 16},
    {"nope_dim": 128},
    {"rope_dim": 0},
    {"rope_dim": 64},
    {"v_dim": 16},
    {"v_dim": 128},
    {"block_size": 1},
    {"block_size": 8},
    {"block_size": 64},
    {"scale": 0.4},
    {"interleaved": True},
    {"adapted": True},
)
MAX_POSITION = 8192
THETA = 10_000.0


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    return grid(BASE, VARIATIONS)


def draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    """Draw a specification and a batch."""
    nope_dim, rope_dim = rng.choice((16, 32, 64)), rng.choice((8, 16, 32))
    spec = MlaAttentionSpec(
        rng.randrange(1, 9),
        rng.choice((16, 32, 64, 96)),
        nope_dim,
        rope_dim,
        rng.choice((16, 32, 64)),
        "float32",
        "float32",
        rng.choice((8, 16, 32)),
        (nope_dim + rope_dim) ** -0.5,
        interleaved=rng.random() < 0.5,
        adapted=rng.random() < 0.25,
    )
    lengths = [rng.choice((1, rng.randrange(1, 20), rng.randrange(1, 150))) for _ in range(6)]
    requests = [(rng.choice((1, rng.randrange(1, n + 1))), n) for n in lengths]
    batch = Batch(tuple(requests[: rng.randrange(1, 7)]), 8 * rng.randrange(0, 9), rng.randrange(4))
    return Setup(in_dtype(spec, rng.choice(DTYPES)), batch)


@dataclass(slots=True)
class Adapter:
    """What adapters make: the same change of the matrix for some tokens. It is `LatentAdapters`.

    Attributes:
        to_keys, to_values: Changes of U and V [num_heads, channels, latent_dim].
        tokens: [num_tokens, 1, 1] bool.
    """

    to_keys: Tensor
    to_values: Tensor
    tokens: Tensor

    def widen(self, wide: Tensor, q: Tensor) -> None:
        plain = q[..., : self.to_keys.size(1)]
        self._add(wide, torch.einsum("qhn,hnr->qhr", plain.float(), self.to_keys.float()))

    def values(self, out: Tensor, mixed: Tensor) -> None:
        self._add(out, torch.einsum("qhr,hvr->qhv", mixed.float(), self.to_values.float()))

    def _add(self, out: Tensor, made: Tensor) -> None:
        assert out.is_contiguous() and out.shape == made.shape
        out.add_(made.masked_fill(~self.tokens, 0).to(out.dtype))


@dataclass(slots=True)
class MlaProblem(PagedRows):
    """A step's q, latents and keys, what was cached before [tokens, channels], and the blocks.

    Attributes:
        change: Of the matrix, by an adapter of every second request.
        past: Of each request, the rows of earlier steps.
        blocks: Of each request, in order.
        chosen: Of sparse attention, what each token attends to [tokens, top_k] int32.
        sinks: Of sparse attention with a logit of each head beside [num_heads] float32.
    """

    spec: MlaAttentionSpec
    batch: Batch
    up: Tensor
    change: Tensor
    q: Tensor
    latent: Tensor
    key: Tensor
    past: list[Tensor]
    blocks: list[Tensor]
    num_blocks: int
    chosen: Tensor | None = None
    sinks: Tensor | None = None

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        run, cache = self._bind(op, place)
        out = run()
        return {"out": out, **self.found(cache)}

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        return self._bind(op, place)[0]

    def _bind(self, op: Any, place: Place) -> tuple[Callable[[], Tensor], Tensor]:
        op.load(place(self.up))
        cache, (shape, view) = self.cache(place), self.step(place)
        q = place(self.q, written=True)
        latent, key = place(self.latent), place(padded(self.key, self.batch.gap))
        positions, table = place(self.positions()), place(rotations(self.spec.rope_dim))
        prepared = op.prepare(shape, view)
        chosen = () if self.chosen is None else (place(self.chosen),)
        beside: dict[str, Any] = {}
        if self.spec.adapted:
            beside["adapters"] = self._adapter(place)
        if self.sinks is not None:
            beside["sinks"] = place(self.sinks)

        def run() -> Tensor:
            turned = op.write(q, latent, key, positions, table, cache, view.slot_mapping)
            out: Tensor = op(turned, cache, prepared, *chosen, **beside)
            return out

        return run, cache

    def _adapter(self, place: Place) -> Adapter:
        parts = self.change.split((self.spec.nope_dim, self.spec.v_dim), dim=1)
        counts = torch.tensor([count for count, _ in self.batch.requests])
        tokens = self._has_adapter().repeat_interleave(counts)[:, None, None]
        return Adapter(*(place(part.contiguous()) for part in parts), place(tokens))

    def _has_adapter(self) -> Tensor:
        return torch.arange(len(self.batch.requests)) % 2 == 0

    def expected(self) -> Mapping[str, Expected]:
        spec = self.spec
        table = rotations(spec.rope_dim)[self.positions().long()]
        key = rotate(self.key.float()[:, None], table, spec.interleaved)[:, 0]
        new = torch.cat((self.latent.float(), key), dim=-1)
        turned = rotate(self.q[..., spec.nope_dim :].float(), table, spec.interleaved)
        q = torch.cat((self.q[..., : spec.nope_dim].float(), turned), dim=-1)
        counts = [count for count, _ in self.batch.requests]
        found = []
        chosen = [None] * len(counts) if self.chosen is None else self.chosen.split(counts)
        plain = changed = self.up.double(), self.up.double().abs()
        if spec.adapted:  # what it adds is rounded apart
            change = self.change.double()
            changed = plain[0] + change, plain[1] + change.abs()
        ups = [changed if has else plain for has in self._has_adapter()]
        parts = zip(q.split(counts), new.split(counts), self.past, chosen, ups, strict=True)
        for queries, rows, past, own, up in parts:
            both = torch.cat((self.as_kept(past), self.as_kept(rows)))
            found.append(_attend(self, up, queries, both, _seen(queries, both, own)))
        value, magnitude = (torch.cat(tensors).flatten(1) for tensors in zip(*found, strict=True))
        exact = spec.dtype == spec.kv_dtype == "float32"
        return {
            "out": Close(value, spec.dtype, magnitude if exact else ROUNDED_OPERANDS * magnitude),
            **self.kept(new),
        }

    def alone(self) -> tuple[MlaProblem, slice]:
        at = len(self.batch.requests) // 4 * 2  # which has an adapter, as the first one has
        begin = sum(count for count, _ in self.batch.requests[:at])
        rows, only = slice(begin, begin + self.batch.requests[at][0]), slice(at, at + 1)
        problem = replace(
            self,
            batch=replace(self.batch, requests=self.batch.requests[only], spare=0, gap=0),
            q=self.q[rows],
            latent=self.latent[rows],
            key=self.key[rows],
            past=self.past[only],
            blocks=self.blocks[only],
            chosen=None if self.chosen is None else self.chosen[rows],
        )
        return problem, rows

    def memory_bytes(self) -> tuple[int, int]:
        return self.up.nbytes, 3 * self.up.nbytes + (1 << 16)

    def cost(self) -> Cost:
        spec = self.spec
        rows = sum(length for _, length in self.batch.requests)
        pairs = sum(c * (n - c) + c * (c + 1) // 2 for c, n in self.batch.requests)
        products = 2 * pairs * spec.num_heads * (spec.nope_dim + spec.rope_dim + spec.v_dim)
        return Cost(rows * spec.row.nbytes + self.up.nbytes + 2 * self.q.nbytes, products)


def _seen(q: Tensor, rows: Tensor, chosen: Tensor | None) -> Tensor:
    """Return which rows each query attends to [tokens, rows]."""
    if chosen is None:
        return torch.ones((len(q), len(rows)), dtype=torch.bool).tril(len(rows) - len(q))
    seen = torch.zeros((len(q), len(rows) + 1), dtype=torch.bool)
    return seen.scatter_(1, chosen.long() % (len(rows) + 1), True)[:, :-1]


def _attend(
    problem: MlaProblem, up: tuple[Tensor, Tensor], q: Tensor, rows: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor]:
    """Return one request's result [tokens, num_heads, v_dim], and what was added up for it, by a
    matrix and by the sizes of what makes it up."""
    spec = problem.spec
    latent, key = rows.double().split((spec.latent_dim, spec.rope_dim), dim=-1)
    to_keys, to_values = up[0].split((spec.nope_dim, spec.v_dim), dim=1)
    keys = torch.einsum("lr,hnr->lhn", latent, to_keys)
    keys = torch.cat((keys, key[:, None].expand(-1, spec.num_heads, -1)), dim=-1)
    scores = torch.einsum("qhd,lhd->hql", q.double(), keys) * spec.scale
    scores = scores.masked_fill(~seen, -torch.inf)
    if problem.sinks is not None:
        beside = problem.sinks.double()[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat((scores, beside), -1)
    weights = scores.softmax(-1)[..., : len(rows)]
    values = torch.einsum("lr,hvr->lhv", latent, to_values)
    magnitudes = torch.einsum("lr,hvr->lhv", latent.abs(), up[1][:, spec.nope_dim :])
    value, magnitude = (torch.einsum("hql,lhv->qhv", weights, v) for v in (values, magnitudes))
    return value, magnitude


def rotations(rope_dim: int) -> Tensor:
    """Return the table of cosines and sines [MAX_POSITION, rope_dim]."""
    frequencies = THETA ** (-torch.arange(0, rope_dim, 2) / rope_dim)
    angles = torch.arange(MAX_POSITION)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def _problem(setup: Setup, source: torch.Generator) -> MlaProblem:
    return problem_of(setup.spec, setup.shape, source)


def problem_of(spec: MlaAttentionSpec, batch: Batch, source: torch.Generator) -> MlaProblem:
    """Make the inputs of attention to everything."""
    blocks, num_blocks = draw_blocks(spec.block_size, batch, source)
    tokens = sum(count for count, _ in batch.requests)
    up_shape = (spec.num_heads, spec.nope_dim + spec.v_dim, spec.latent_dim)
    return MlaProblem(
        spec,
        batch,
        normal(up_shape, spec.dtype, source, spec.latent_dim**-0.5),
        normal(up_shape, spec.dtype, source, spec.latent_dim**-0.5),
        normal((tokens, spec.num_heads, spec.nope_dim + spec.rope_dim), spec.dtype, source),
        normal((tokens, spec.latent_dim), spec.dtype, source),
        normal((tokens, spec.rope_dim), spec.dtype, source),
        earlier(spec, batch, source),
        blocks,
        num_blocks,
    )


#: DeepSeek-V2-Lite's attention.
LITE = MlaAttentionSpec(16, 512, 128, 64, 128, "float32", "float32", 32, 192**-0.5, True)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    batches = (Batch(((1, 2048),) * 4), Batch(((512, 512),)))
    return [Setup(in_dtype(LITE, d), batch) for d in DTYPES[:2] for batch in batches]


SUITE = Suite(SLOT, _grid, draw, _problem, _bench)
