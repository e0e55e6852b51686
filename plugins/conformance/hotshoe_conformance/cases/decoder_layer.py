"""Cases of slots `decoder_layer` and `model_step`: batches of prompts, decodes and drafts.

What comes out is computed here in float32, operation by operation. How far it may be off is
measured: the same is computed again with every intermediate value moved by the rounding of the
type, and a result may lie a few times as far away as those do. Keys and values of the step's tokens
are compared too, and blocks that nobody owns must stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import (
    CacheView,
    DecoderLayerSpec,
    GatedMlpSpec,
    KVLayout,
    LayerContext,
    LinearSpec,
    ModelStepSpec,
    StepShape,
)
from hotshoe.slots.reference.activation import ACTIVATIONS
from hotshoe.slots.reference.attention import attend
from hotshoe.slots.reference.kv import kv_of
from hotshoe.slots.reference.norm import rms_norm
from hotshoe.slots.reference.rotary import rotate
from hotshoe_conformance.cases import attention
from hotshoe_conformance.cases.attention import AttentionProblem, Batch
from hotshoe_conformance.cases.base import DTYPES, Setup, Suite, in_dtype, normal, reference
from hotshoe_conformance.cases.kv import QUANTIZED, as_kept
from hotshoe_conformance.cases.quant import OPERANDS
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import TOLERANCES, Close, Exact, Expected

MIXED = Batch(((1, 20), (5, 5), (4, 17), (1, 1)), spare=2)
SHAPES = (Batch(((1, 1),)), Batch(((3, 40),)), Batch(((33, 33), (1, 18))))
#: How often a result is computed again, and how many times as far away it may be.
RUNS, TIMES = 4, 4.0
#: Where operands or caches have eight bits, values are moved so far that they go to neighbors.
EIGHT_BITS = 2**-7
#: Leaves a value as it is, or moves it.
Noise = Callable[[Tensor], Tensor]


def layer(
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    hidden: int = 48,
    inner: int = 40,
    **changes: Any,
) -> DecoderLayerSpec:
    """Return a layer in float32; changes are fields of its own, of its attention or matrices."""
    base = attention.BASE
    parts = {f: changes.pop(f) for f in base.__dataclass_fields__ if f in changes}
    both = {f: changes.pop(f) for f in ("weight", "activation", "bias") if f in changes}
    kind = changes.pop("kind", "silu")
    rows, values = (heads + kv_heads) * dim, parts.get("v_head_dim", dim)

    def linear(size: int, out: int) -> LinearSpec:
        return LinearSpec(size, out, "float32", **both)

    attended = replace(base, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, block_size=8)
    return DecoderLayerSpec(
        linear(hidden, rows + kv_heads * values),
        replace(attended, **parts),
        linear(heads * values, hidden),
        GatedMlpSpec(linear(hidden, 2 * inner), linear(inner, hidden), kind),
        **{"norm_eps": 1e-5, "rotary_dim": dim, **changes},
    )


VARIATIONS: tuple[dict[str, Any], ...] = (
    {"window": 7},
    {"softcap": 5.0},
    {"sinks": True},
    {"window": 7, "sinks": True, "bias": True},
    {"bias": True},
    {"kind": "gelu_tanh", "norm_offset": 1.0},
    {"qk_norm_eps": 1e-6},
    {"qk_norm_eps": 1e-6, "qk_norm_offset": 1.0},
    {"rotary_dim": 8},
    {"rotary_dim": 0},
    {"interleaved": True},
    {"v_head_dim": 8},
    {"kv_heads": 4, "hidden": 37, "inner": 41},
    {"heads": 6, "kv_heads": 1, "dim": 32},
    {"scale": 0.5, "norm_eps": 0.1},
    {"adapters": True},
    OPERANDS[0],
    QUANTIZED[0],
)


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    setups = []
    for dtype in DTYPES:
        setups += [Setup(in_dtype(layer(**v), dtype), MIXED, True) for v in ({}, *VARIATIONS)]
        setups += [Setup(in_dtype(layer(), dtype), shape, True) for shape in SHAPES]
    return setups


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    kv_heads = rng.randrange(1, 4)
    sizes = {"heads": kv_heads * rng.randrange(1, 4), "kv_heads": kv_heads, "dim": 16}
    sizes |= {"hidden": rng.randrange(8, 80), "inner": rng.randrange(8, 80)}
    changes = {"window": rng.choice((None, 5)), "sinks": rng.random() < 0.3}
    lengths = [rng.randrange(1, 40) for _ in range(rng.randrange(1, 5))]
    batch = Batch(tuple((rng.randrange(1, n + 1), n) for n in lengths))
    return Setup(in_dtype(layer(**sizes, **changes), rng.choice(DTYPES)), batch)


@dataclass(slots=True)
class LayerCase:
    """One layer's weights, and a problem of its attention that has the past tokens alone."""

    spec: DecoderLayerSpec
    past: AttentionProblem
    matrices: dict[str, tuple[list[Tensor], list[Tensor]]]
    vectors: dict[str, Tensor]
    adapters: dict[str, Tensor] = field(default_factory=dict)

    def load(self, op: Any, cos_sin: Tensor, place: Place) -> None:
        """Give a candidate everything, as the layer of a model does."""
        for name, tensors in self._parts().items():
            op.load(name, tensors)
        for name, vector in self.vectors.items():
            op.load(name, {"weight": [vector]})
        table = place(cos_sin) if self.spec.rotary_dim else None
        adds = {name: place(rows) for name, rows in self.adapters.items()}
        op.bind(LayerContext(table, None, {n: _adding(rows) for n, rows in adds.items()}))

    def _parts(self) -> dict[str, dict[str, list[Tensor]]]:
        found = {}
        for name, spec in self.spec.matrices.items():
            weight, bias = self.matrices[name]
            found[name] = {"weight": weight} | ({"bias": bias} if spec.bias else {})
        return found

    def compute(
        self, x: Tensor, cos_sin: Tensor, noise: Noise, kept: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return y, and the keys and values of the step's tokens, which `kept` gets."""
        spec, heads = self.spec, self.spec.attention
        qkv = self._product("qkv", noise(self._norm("input_norm", x)), noise)
        groups = (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
        dims = (heads.head_dim, heads.head_dim, heads.value_dim)
        parts = qkv.split([n * dim for n, dim in zip(groups, dims, strict=True)], 1)
        q, k, v = (p.view(len(x), -1, dim) for p, dim in zip(parts, dims, strict=True))
        if spec.qk_norm_eps is not None:
            q, k = (
                noise(rms_norm(t, self.vectors[n].float(), spec.qk_norm_eps, spec.qk_norm_offset))
                for t, n in ((q, "q_norm"), (k, "k_norm"))
            )
        if spec.rotary_dim:
            q, k = (noise(rotate(t, cos_sin, spec.interleaved)) for t in (q, k))
        attended = noise(self._attend(q, k, v, kept))
        x = noise(x + self._product("o", attended, noise))
        gate, up = self._product("gate_up", noise(self._norm("mlp_norm", x)), noise).chunk(2, 1)
        inner = noise(ACTIVATIONS[spec.mlp.activation](gate) * up)
        return noise(x + self._product("down", inner, noise)), kept

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self.vectors[name].float(), self.spec.norm_eps, self.spec.norm_offset)

    def _product(self, name: str, x: Tensor, noise: Noise) -> Tensor:
        op = reference("linear", in_dtype(self.spec.matrices[name], "float32"))
        op.load({k: [t.float() for t in parts] for k, parts in self._parts()[name].items()})
        y = noise(op(x))
        return noise(y + self.adapters[name].float() * x[:, :1]) if name in self.adapters else y

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, kept: list[Tensor]) -> Tensor:
        spec, past, found = self.spec.attention, self.past, []
        counts = [count for count, _ in past.batch.requests]
        split = (q.split(counts), k.split(counts), v.split(counts))
        for at, (mine, *both) in enumerate(zip(*split, strict=True)):
            both = [
                torch.cat((old.float(), new))
                for old, new in zip((past.keys[at], past.values[at]), both, strict=True)
            ]
            keys, values = as_kept(spec, *both)
            kept.append(torch.cat((keys.flatten(1), values.flatten(1)), 1)[-len(mine) :])
            found.append(attend(spec, mine, keys, values, self.vectors.get("sinks")))
        return torch.cat(found).flatten(1)


def _adding(rows: Tensor) -> Callable[[Tensor, Tensor], None]:
    return lambda y, x: y.add_(rows * x[:, :1])


@dataclass(slots=True)
class LayersProblem:
    """Layers one behind another, x, and the angles of its tokens' positions."""

    layers: list[LayerCase]
    x: Tensor
    cos_sin: Tensor
    source: int
    stacked: bool

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        ops = op.layers if self.stacked else [op]
        x = place(self.x)
        positions, shape = place(self._positions()), self._shape(place)
        caches, views = [], []
        for one, case in zip(ops, self.layers, strict=True):
            case.load(one, self.cos_sin, place)
            caches.append(place(case.past._cache(one.layout, Place("cpu")), written=True))
            meta = case.past._metadata(place)
            view = CacheView(meta.block_table, meta.slot_mapping)
            view.prepared = one.prepare(shape, view)
            views.append(view)
        if self.stacked:
            y = op(x, caches, positions, views)
        else:
            y = op(x, caches[0], positions, views[0].slot_mapping, views[0].prepared)
        found = {"y": y, "x": x}
        for number, (one, case, cache) in enumerate(zip(ops, self.layers, caches, strict=True)):
            found |= _stored(case, one.layout, cache.cpu(), number)
        return found

    def expected(self) -> Mapping[str, Expected]:
        dtype, source = self.layers[0].spec.dtype, torch.Generator().manual_seed(self.source)
        rough = [EIGHT_BITS] if any(_in_eight_bits(case.spec) for case in self.layers) else []
        limit = max([TOLERANCES[dtype].rounding, *rough])
        exact = self._compute(lambda t: t)
        moved = [self._compute(_moving(limit, source)) for _ in range(RUNS)]
        found: dict[str, Expected] = {"x": Exact(self.x)}
        for name, value in exact.items():
            far = torch.stack([(other[name] - value).abs() for other in moved]).amax(0)
            slack = TIMES * far.square().mean(-1, keepdim=True).sqrt()
            kind = dtype if name == "y" else "float32"
            found[name] = Close(value, kind, slack=slack, through=dtype)
        for number in range(len(self.layers)):
            found[f"untouched{number}"] = Exact(torch.ones(1, dtype=torch.bool))
        return found

    def _compute(self, noise: Noise) -> dict[str, Tensor]:
        x, found = self.x.float(), {}
        for number, case in enumerate(self.layers):
            x, kept = case.compute(x, self.cos_sin[self._positions().long()], noise, [])
            found[f"kept{number}"] = torch.cat(kept)
        return {"y": x, **found}

    def alone(self) -> tuple[LayersProblem, slice]:
        cases, rows = [], slice(0)
        for case in self.layers:
            past = replace(case.past, q=self.x)
            past, rows = past.alone()
            cases.append(replace(case, past=past))
        return replace(self, layers=cases, x=self.x[rows]), rows

    def _positions(self) -> Tensor:
        spans = [range(n - count, n) for count, n in self.layers[0].past.batch.requests]
        return torch.tensor([at for span in spans for at in span], dtype=torch.int32)

    def _shape(self, place: Place) -> StepShape:
        meta = self.layers[0].past._metadata(place)
        counts, lengths = zip(*self.layers[0].past.batch.requests, strict=True)
        both = (list(counts), list(lengths))
        sizes = (meta.max_query_len, meta.max_seq_len)
        return StepShape(meta.num_reqs, meta.query_start_loc, meta.seq_lens, *sizes, both)


def _in_eight_bits(spec: DecoderLayerSpec) -> bool:
    return spec.attention.kv_scales != "none" or any(m.weight for m in spec.matrices.values())


def _moving(limit: float, source: torch.Generator) -> Noise:
    """Return what moves numbers by up to a share of themselves."""
    return lambda t: t + t * limit * (2 * torch.rand(t.shape, generator=source) - 1)


def _stored(case: LayerCase, layout: KVLayout, cache: Tensor, number: int) -> dict[str, Tensor]:
    """Return what a cache holds of the step's tokens, and whether nobody's blocks changed."""
    past, found = case.past, []
    paged = kv_of(cache, case.spec.attention, layout, None)
    for (count, length), blocks in zip(past.batch.requests, past.blocks, strict=True):
        both = torch.cat([t.float().flatten(1) for t in paged.gather(blocks, length)], 1)
        found.append(both[-count:])
    before = past._cache(layout, Place("cpu")).contiguous().view(torch.uint8)
    free = torch.ones(past.num_blocks, dtype=torch.bool)
    free[torch.cat(past.blocks).long()] = False
    same = torch.equal(before[:, free], cache.contiguous().view(torch.uint8)[:, free])
    return {f"kept{number}": torch.cat(found), f"untouched{number}": torch.tensor([same])}


def _case(spec: DecoderLayerSpec, batch: Batch, source: torch.Generator) -> LayerCase:
    past = attention._problem(Setup(spec.attention, batch), source)
    for at, (count, length) in enumerate(batch.requests):
        past.keys[at], past.values[at] = past.keys[at][: length - count], past.values[at][:-count]
    heads, dtype = spec.attention, spec.dtype
    q, k = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    inner = spec.mlp.down.in_features
    rows = {"qkv": [q, k, heads.num_kv_heads * heads.value_dim], "gate_up": [inner, inner]}
    matrices = {}
    for name, one in spec.matrices.items():
        parts = rows.get(name, [one.out_features])
        weight = normal((sum(parts), one.in_features), dtype, source, one.in_features**-0.5)
        bias = normal((sum(parts),), dtype, source)
        matrices[name] = ([*weight.split(parts)], [*bias.split(parts)])
    names = {"input_norm": spec.hidden_size, "mlp_norm": spec.hidden_size}
    if spec.qk_norm_eps is not None:
        names |= {"q_norm": heads.head_dim, "k_norm": heads.head_dim}
    vectors = {name: normal((size,), dtype, source) for name, size in names.items()}
    if past.sinks is not None:
        vectors["sinks"] = past.sinks
    adapters = {
        name: normal((one.out_features,), dtype, source)
        for name, one in spec.matrices.items()
        if spec.adapters
    }
    return LayerCase(spec, past, matrices, vectors, adapters)


def _problem(setup: Setup, source: torch.Generator) -> LayersProblem:
    spec, batch = setup.spec, setup.shape
    stacked = isinstance(spec, ModelStepSpec)
    layers = [_case(one, batch, source) for one in (spec.each() if stacked else [spec])]
    first = layers[0].spec
    longest = max(length for _, length in batch.requests)
    angles = 6.3 * torch.rand((longest, first.rotary_dim // 2), generator=source)
    tokens = sum(count for count, _ in batch.requests)
    x = normal((tokens, first.hidden_size), first.dtype, source)
    seed = int(torch.randint(1 << 31, (), generator=source))
    return LayersProblem(layers, x, torch.cat((angles.cos(), angles.sin()), 1), seed, stacked)


def _steps(layouts: Sequence[KVLayout]) -> list[Setup]:
    stacks = (((layer(), 3),), ((layer(window=7), 1), (layer(), 1), (layer(window=7), 1)))
    return [
        Setup(ModelStepSpec(tuple((in_dtype(s, d), n) for s, n in stack)), MIXED, True)
        for d in DTYPES
        for stack in stacks
    ]


def _draw_steps(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    drawn = _draw(rng, layouts)
    return Setup(ModelStepSpec(((drawn.spec, rng.randrange(1, 4)),)), drawn.shape)


SUITE = Suite("decoder_layer", _grid, _draw, _problem)
STEPS = Suite("model_step", _steps, _draw_steps, _problem)
