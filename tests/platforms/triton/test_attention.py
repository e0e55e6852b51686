"""Decode and prefill attention against core's reference: shapes, windows, caps, sinks, padding."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec
from hotshoe.slots.reference import attention as plain
from hotshoe.slots.reference.kv import PagedKV
from hotshoe_triton import attention
from hotshoe_triton.attention import Attention, Tiling

SPEC = AttentionSpec(4, 2, 64, "float32", "float32", 16, 0.125)
SMALL_DECODE, SMALL_PREFILL = Tiling(16, 16, 4, 1, 2, 16), Tiling(16, 16, 4, 1)
NAN = float("nan")


class Case:
    """Requests as (queries, length) over a cache whose unused slots hold NaN."""

    def __init__(
        self,
        spec: AttentionSpec,
        steps: list[tuple[int, int]],
        rng: torch.Generator,
        block_stride: int = 0,
    ) -> None:
        self.spec = spec
        dtype = getattr(torch, spec.dtype)
        device = rng.device
        size = spec.block_size
        counts = [-(-length // size) for _, length in steps]
        blocks = sum(counts) + 3
        order = torch.randperm(blocks, generator=rng, device=device).int()
        width = max([*counts, 1]) + 1
        self.table = torch.zeros(len(steps), width + 2, dtype=torch.int32, device=device)[:, :width]
        numel = size * spec.num_kv_heads * spec.head_dim
        stride = max(numel, block_stride)
        storage = torch.full((2 * blocks * stride,), NAN, dtype=dtype, device=device)
        self.cache = storage.view(2, blocks, stride)[:, :, :numel]
        self.plain = torch.zeros(2, blocks, numel, dtype=dtype, device=device)
        self.shape = (spec.num_kv_heads, spec.head_dim)
        taken = 0
        slots = []
        for row, (queries, length) in enumerate(steps):
            self.table[row, : counts[row]] = order[taken : taken + counts[row]]
            taken += counts[row]
            where = torch.arange(length, device=device)
            slot = self.table[row, where // size] * size + where % size
            slots.append(slot[length - queries :])
            self._fill(slot, rng)
        starts = torch.tensor([0, *(queries for queries, _ in steps)]).cumsum(0)
        lengths = [length for _, length in steps]
        self.meta = AttentionMetadata(
            len(steps),
            starts.int().to(device),
            torch.tensor(lengths).int().to(device),
            self.table,
            torch.cat(slots).int(),
            max(queries for queries, _ in steps),
            max(lengths),
        )
        tokens = int(starts[-1])
        wide = torch.randn(
            tokens, (spec.num_heads + 3) * spec.head_dim, generator=rng, device=device
        ).to(dtype)
        heads = wide[:, : spec.num_heads * spec.head_dim]
        self.q = heads.unflatten(1, (spec.num_heads, spec.head_dim))
        self.sinks = None
        if spec.sinks:
            self.sinks = torch.randn(spec.num_heads, generator=rng, device=device)

    def _fill(self, slots: torch.Tensor, rng: torch.Generator) -> None:
        k, v = torch.randn(2, len(slots), *self.shape, generator=rng, device=rng.device)
        sizes = (self.spec.block_size, *self.shape)
        for cache, layout in (
            (self.cache, attention.LAYOUT),
            (self.plain, plain.Attention.layout),
        ):
            # A strided cache cannot be viewed; fill a contiguous copy and put it back.
            filled = cache.contiguous()
            PagedKV(filled, layout, *sizes).write(k, v, slots)
            cache.copy_(filled)

    def expected(self) -> torch.Tensor:
        facts = DeviceFacts("", "", "", "", 0, 0)
        return plain.Attention(self.spec, facts)(self.q, self.plain, self.meta, self.sinks)


def compute(case: Case, facts: DeviceFacts, **options: object) -> torch.Tensor:
    spec = case.spec
    options = {"decode": SMALL_DECODE, "prefill": SMALL_PREFILL} | options
    operation = Attention(spec, facts, **options)
    poison = torch.full_like(case.q, NAN)  # what the caching allocator is likely to hand out
    del poison
    return operation(case.q, case.cache, case.meta, case.sinks)


VARIANTS = [
    {},
    {"window": 9},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 21, "sinks": True, "softcap": 5.0},
    {"num_heads": 7, "num_kv_heads": 1, "head_dim": 80},
    {"num_heads": 6, "num_kv_heads": 2, "block_size": 32},
]
STEPS = {
    "decode": [(1, 37), (1, 1), (1, 90), (1, 16)],
    "one": [(1, 70)],
    "prefill": [(23, 23), (5, 40)],
    "chunk": [(9, 33)],
    "mixed": [(1, 50), (17, 20), (1, 3), (2, 2)],
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_agrees_with_the_reference(
    facts: DeviceFacts, changes: dict[str, object], steps: str, rng: torch.Generator
) -> None:
    case = Case(replace(SPEC, **changes), STEPS[steps], rng)
    torch.testing.assert_close(compute(case, facts), case.expected(), rtol=1e-4, atol=1e-5)
