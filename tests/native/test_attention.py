"""Paged attention against a float64 reference: batches, layouts, masks, splits and poison.

Everything that a kernel has no business reading (other requests' blocks, free slots, gaps
between rows) holds NaN, and outputs start as NaN, so that a stray read or a forgotten write shows.
"""

from dataclasses import dataclass, field
from types import ModuleType

import pytest
import torch

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NARROW = {torch.int8: 3, torch.float8_e4m3fn: 4, torch.float8_e5m2: 5}
# Relative to the sum of |weight * value|: rounding of weights and outputs, float sums.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 9e-3, torch.float16: 1.2e-3}


@pytest.fixture
def native(native_or_emulated: ModuleType) -> ModuleType:
    return native_or_emulated


@dataclass
class Case:
    """One batch: (queries, length) of each request, and the attention's parameters.

    `slope` is what logits of the first head fall by for each token of distance; each further head
    has half as much. `shares` has, for some requests, an earlier one and how many keys, whole
    blocks of them, both have in the same blocks.
    """

    requests: list[tuple[int, int]]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 32
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    slope: float = 0.0
    value_scale: float = 1.0
    shares: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(queries for queries, _ in self.requests)

    @property
    def slopes(self) -> torch.Tensor:
        return self.slope * 0.5 ** torch.arange(self.num_heads)


def reference_request(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend one request in float64: its output, and the sum of |weight * value|."""
    group = case.num_heads // case.num_kv_heads
    q, k, v = (
        q.double(),
        k.double().repeat_interleave(group, 1),
        v.double().repeat_interleave(group, 1),
    )
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if case.softcap:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    positions = torch.arange(len(k) - len(q), len(k))[:, None]
    keys = torch.arange(len(k))[None]
    scores -= case.slopes.double()[:, None, None] * (positions - keys)
    seen = keys <= positions
    if case.window:
        seen &= keys > positions - case.window
    scores = scores.masked_fill(~seen, -torch.inf)
    if case.sinks:
        column = sinks.double()[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : len(k)]
    return torch.einsum("hqk,khd->qhd", weights, v), torch.einsum("hqk,khd->qhd", weights, v.abs())


class Batch:
    """A case with data: NaN-filled caches in the kernel's layout, shuffled blocks, strided q."""

    def __init__(self, case: Case, dtype: torch.dtype, rng: torch.Generator) -> None:
        self.case, self.dtype = case, dtype
        self.pack = 1 if dtype == torch.float32 else 2
        self.scale = case.head_dim**-0.5
        heads, kv_heads, dim = case.num_heads, case.num_kv_heads, case.head_dim
        wide = torch.randn(case.num_tokens, heads + 2 * kv_heads, dim, generator=rng).to(dtype)
        self.q = wide[:, :heads]
        self.out = torch.full((case.num_tokens + 3, heads, dim), torch.nan, dtype=dtype)
        self.sinks, self.slopes = torch.randn(heads, generator=rng) * 2, case.slopes
        ends = [0, *(queries for queries, _ in case.requests)]
        self.query_start_loc = torch.tensor(ends).cumsum(0).int()
        self.seq_lens = torch.tensor([length for _, length in case.requests]).int()
        self.keys = [
            torch.randn(n, kv_heads, dim, generator=rng).to(dtype) for _, n in case.requests
        ]
        self.values = [
            (torch.randn(n, kv_heads, dim, generator=rng) * case.value_scale).to(dtype)
            for _, n in case.requests
        ]
        self.fill_cache(rng)

    def fill_cache(self, rng: torch.Generator) -> None:
        case, size, p = self.case, self.case.block_size, self.pack
        counts = [-(-length // size) for _, length in case.requests]
        num_blocks = sum(counts) + 2
        order = torch.randperm(num_blocks, generator=rng).tolist()
        self.block_table = torch.full((len(counts), max([*counts, 1]) + 1), -(2**30)).int()
        shape = (num_blocks, case.num_kv_heads)
        k_cache = torch.full((*shape, case.head_dim // p, size, p), torch.nan, dtype=self.dtype)
        v_cache = torch.full((*shape, size // p, case.head_dim, p), torch.nan, dtype=self.dtype)
        for row, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            other, shared = case.shares.get(row, (0, 0))
            keys[:shared], values[:shared] = self.keys[other][:shared], self.values[other][:shared]
            self.block_table[row, : shared // size] = self.block_table[other, : shared // size]
            new = range(shared // size, counts[row])
            self.block_table[row, new.start : new.stop] = torch.tensor([order.pop() for _ in new])
            tokens = torch.arange(shared, len(keys))
            blocks, slots = self.block_table[row, tokens // size].long(), tokens % size
            k_cache[blocks, :, :, slots] = keys[shared:].unflatten(-1, (-1, p))
            v_cache[blocks, :, slots // p, :, slots % p] = values[shared:]
        self.cache = torch.stack([k_cache.flatten(1), v_cache.flatten(1)])

    def run(self, native: ModuleType) -> torch.Tensor:
        case = self.case
        native.paged_attention(
            *(t.data_ptr() for t in (self.out, self.q, self.cache[0], self.cache[1])),
            *(t.data_ptr() for t in (self.block_table, self.query_start_loc, self.seq_lens)),
            self.sinks.data_ptr() if case.sinks else 0,
            self.slopes.data_ptr() if case.slope else 0,
            *(len(case.requests), case.num_heads, case.num_kv_heads, case.head_dim),
            *(case.block_size, self.block_table.shape[1]),
            *(self.out.stride(0), self.q.stride(0), self.cache.stride(1)),
            *(case.block_size * case.head_dim, self.block_table.stride(0)),
            *(self.scale, case.window, case.softcap, CODES[self.dtype]),
        )
        return self.out

    def check(self, tolerance: float = 0.0) -> None:
        """Compare with the reference; rows behind the last token must be untouched."""
        tolerance = max(tolerance, TOLERANCE[self.dtype])
        assert self.out[self.case.num_tokens :].isnan().all()
        start = 0
        for (queries, _), keys, values in zip(
            self.case.requests, self.keys, self.values, strict=True
        ):
            q = self.q[start : start + queries]
            if queries:
                expected, magnitude = reference_request(
                    self.case, q, keys, values, self.sinks, self.scale
                )
                error = (self.out[start : start + queries].double() - expected).abs()
                assert not error.isnan().any()
                assert (error / (magnitude + 1e-3)).max() < tolerance
            start += queries


def check(native: ModuleType, case: Case, dtype: torch.dtype, rng: torch.Generator) -> None:
    batch = Batch(case, dtype, rng)
    batch.run(native)
    batch.check()


MIXED = [(1, 70), (37, 37), (1, 1), (5, 133), (0, 40), (1, 256), (64, 300), (2, 33)]
CASES = {
    "mixed": Case(MIXED),
    "one-token": Case([(1, 1)]),
    "no-requests": Case([]),
    "no-queries": Case([(0, 7), (0, 0)]),
    "prefill": Case([(257, 257)], num_heads=2, num_kv_heads=1),
    "chunked": Case([(100, 611)], num_heads=2, num_kv_heads=2),
    "long-decode-splits": Case([(1, 2100)], num_heads=2, num_kv_heads=1),
    "one-long-among-short": Case([(1, 1537), (1, 5), (1, 64)], num_heads=3, num_kv_heads=1),
    "some-heads-at-once": Case([(1, 300 + i) for i in range(6)], num_heads=10, num_kv_heads=5),
    "all-heads-at-once": Case([(1, 140 + 9 * i) for i in range(9)], head_dim=128),
    "heads-at-once-and-splits": Case([(1, 2100), (2, 70)], num_heads=24, num_kv_heads=8),
    "window": Case(MIXED, window=17),
    "window-1": Case([(40, 90), (1, 64)], window=1),
    "window-splits": Case([(1, 1900)], num_heads=1, num_kv_heads=1, window=1024),
    "softcap": Case(MIXED, softcap=5.0),
    "softcap-out-of-reach": Case(MIXED, softcap=1000.0),
    "sinks": Case([*MIXED, (1, 1300)], sinks=True),
    "sinks-splits": Case([(1, 2100)], num_heads=2, num_kv_heads=1, sinks=True),
    "sinks-window-softcap": Case(MIXED, window=50, softcap=3.0, sinks=True),
    "slopes": Case([*MIXED, (1, 1900), (40, 1300)], slope=0.5),
    "slopes-splits": Case([(1, 2100)], num_heads=2, num_kv_heads=1, slope=0.01),
    "slopes-window-softcap-sinks": Case(MIXED, window=50, softcap=3.0, sinks=True, slope=0.25),
}


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("name", CASES)
def test_cases(native: ModuleType, name: str, dtype: torch.dtype, rng: torch.Generator) -> None:
    check(native, CASES[name], dtype, rng)


DECODING = [(1, 600), (1, 801), (1, 513), (1, 700), (1, 640), (1, 577), (1, 1100), (1, 300)]
SHARING = {
    "all": dict.fromkeys(range(1, 7), (0, 512)),
    "pairs": {1: (0, 576), 3: (2, 512), 5: (4, 544)},
    "more-by-some": {1: (0, 288), 2: (0, 288), 3: (1, 672), 4: (1, 640), 6: (2, 512)},
    "too-little": dict.fromkeys(range(1, 8), (0, 224)),
    "all-but-the-last-key": {2: (0, 512), 7: (0, 288)},
    "a-prompt-too": {1: (0, 320), 2: (0, 320), 8: (0, 320), 9: (8, 288)},
}


@pytest.mark.parametrize(("threads", "dtype"), [*zip((1, 2, 2), CODES, strict=True)])
@pytest.mark.parametrize("name", SHARING)
def test_shared_prefixes(
    native: ModuleType, name: str, threads: int, dtype: torch.dtype, rng: torch.Generator
) -> None:
    native.set_threads(threads)
    requests = [*DECODING, (30, 350), (1, 333)]
    check(native, Case(requests, sinks=True, shares=SHARING[name]), dtype, rng)
    check(native, Case(requests, window=700, shares=SHARING[name]), dtype, rng)


@pytest.mark.parametrize(("block_size", "heads"), [(8, 2), (16, 12), (128, 64), (512, 96)])
def test_shared_prefixes_of_other_sizes(
    native: ModuleType, block_size: int, heads: int, rng: torch.Generator
) -> None:
    """More requests than one pass takes, down to one for each."""
    case = Case(
        [(1, 560 + 7 * i) for i in range(30)],
        num_heads=heads,
        num_kv_heads=2 if heads < 64 else 1,
        head_dim=16,
        block_size=block_size,
        softcap=5.0,
        shares=dict.fromkeys(range(1, 30), (0, 512)),
    )
    check(native, case, torch.bfloat16, rng)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [8, 16, 24, 32, 64, 80, 96, 104, 128, 256, 464, 512])
def test_head_dims(
    native: ModuleType, head_dim: int, dtype: torch.dtype, rng: torch.Generator
) -> None:
    check(native, Case([(13, 50), (1, 91)], head_dim=head_dim), dtype, rng)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [8, 16, 64, 512])
def test_block_sizes(
    native: ModuleType, block_size: int, dtype: torch.dtype, rng: torch.Generator
) -> None:
    case = Case([(30, 77), (1, 700), (9, 9)], block_size=block_size)
    check(native, case, dtype, rng)
    check(native, Case([(3, 611)], block_size=block_size, window=300), dtype, rng)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 64])
def test_heads_per_kv_head(native: ModuleType, group: int, rng: torch.Generator) -> None:
    case = Case([(9, 40), (1, 30)], num_heads=2 * group, num_kv_heads=2, head_dim=16)
    check(native, case, torch.bfloat16, rng)


def test_random_batches(native: ModuleType, rng: torch.Generator) -> None:
    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=rng))

    for _ in range(12):
        requests = []
        for _ in range(draw(1, 6)):
            length = draw(1, 400)
            requests.append((draw(0, min(length, 90)), length))
        size, shares = 8 << draw(0, 3), {}
        for _ in range(draw(0, 5)):
            requests.append((1, draw(257, 700)))
            last, other = len(requests) - 1, draw(0, len(requests) - 2)
            common = min(requests[last][1], requests[other][1]) - 1
            shares[last] = (other, draw(0, common) // size * size)
        kv_heads = draw(1, 3)
        case = Case(
            requests,
            num_heads=kv_heads * draw(1, 5),
            num_kv_heads=kv_heads,
            head_dim=8 * draw(1, 9),
            block_size=size,
            window=draw(0, 1) * draw(1, 200),
            softcap=draw(0, 1) * 4.0,
            sinks=bool(draw(0, 1)),
            slope=draw(0, 1) * 0.3,
            shares=shares,
        )
        check(native, case, [torch.float32, torch.bfloat16][draw(0, 1)], rng)


@pytest.mark.parametrize("scale", [300.0, 1e7])
def test_large_scores_do_not_overflow(
    native: ModuleType, scale: float, rng: torch.Generator
) -> None:
    batch = Batch(Case([(20, 60), (1, 1400), (3, 2000)]), torch.float32, rng)
    batch.scale = scale
    batch.run(native)
    # Scores of 1e4 and more make the weights one-hot: only their float rounding remains.
    TOLERANT = 2e-2
    start = 0
    for (queries, _), keys, values in zip(
        batch.case.requests, batch.keys, batch.values, strict=True
    ):
        q, end = batch.q[start : start + queries], start + queries
        expected, magnitude = reference_request(
            batch.case, q, keys, values, batch.sinks, batch.scale
        )
        error = (batch.out[start:end].double() - expected).abs() / (magnitude + 1)
        assert error.max() < TOLERANT
        start = end


@pytest.mark.parametrize(
    ("dtype", "sinks"),
    [
        (torch.float32, True),
        (torch.bfloat16, False),
        (torch.bfloat16, True),
        (torch.float16, False),
    ],
)
def test_scores_that_rise_and_fall_along_the_keys(
    native: ModuleType, dtype: torch.dtype, sinks: bool, rng: torch.Generator
) -> None:
    """Weights of the keys before, or of those to come, are nothing beside later or earlier ones."""
    case = Case([(1, 1900), (40, 1300), (2, 700), (1, 520)], sinks=sinks)
    for slope in (-0.3, -0.02, 0.02, 0.3):
        batch = Batch(case, dtype, rng)
        for keys in batch.keys:
            keys.copy_(keys / 16)
            keys[..., 0] = (torch.arange(len(keys)) * slope).to(dtype)[:, None]
        batch.q[..., 0] = batch.case.head_dim**0.5
        batch.fill_cache(torch.Generator().manual_seed(1))
        batch.run(native)
        batch.check(5e-4)  # what rounding scores of several hundreds makes of weights


@pytest.mark.parametrize("slope", [-0.2, 4.0])
@pytest.mark.parametrize("dtype", CODES)
def test_steep_slopes(
    native: ModuleType, slope: float, dtype: torch.dtype, rng: torch.Generator
) -> None:
    batch = Batch(Case([(1, 1900), (40, 1300)], sinks=True, slope=slope), dtype, rng)
    batch.run(native)
    batch.check(5e-4)  # as above


@pytest.mark.parametrize("threads", [1, 3])
def test_result_does_not_depend_on_thread_timing(
    native: ModuleType, threads: int, rng: torch.Generator
) -> None:
    native.set_threads(threads)
    batch = Batch(Case([(1, 1500), (1, 40), (30, 900)]), torch.bfloat16, rng)
    first = batch.run(native).clone()
    batch.check()
    for _ in range(3):
        assert batch.out.fill_(torch.nan) is batch.run(native)
        assert torch.equal(first.view(torch.int16), batch.out.view(torch.int16))


def test_nan_of_one_request_stays_there(native: ModuleType, rng: torch.Generator) -> None:
    batch = Batch(Case([(1, 40), (1, 50), (5, 50)]), torch.bfloat16, rng)
    batch.q[1] = torch.nan
    batch.run(native)
    assert batch.out[1].isnan().all()
    assert not batch.out[[0, 2, 3, 4, 5, 6]].isnan().any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requests": [(3, 2)]}, "request 0 has 3 queries, length 2"),
        ({"num_heads": 5}, "multiple of num_kv_heads"),
        ({"head_dim": 12}, "multiple of 8"),
        ({"block_size": 24}, "power of two"),
    ],
)
def test_impossible_sizes_are_refused(
    native: ModuleType, change: dict[str, object], message: str, rng: torch.Generator
) -> None:
    batch = Batch(Case([(1, 2)]), torch.float32, rng)
    for name, value in change.items():
        setattr(batch.case, name, value)
    if "requests" in change:
        batch.query_start_loc[1] = 3
    with pytest.raises(ValueError, match=message):
        batch.run(native)


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("heads", [1, 7, 20])
def test_numbers_of_8_bits_are_read_exactly(
    native: ModuleType, heads: int, dtype: torch.dtype, kind: torch.dtype
) -> None:
    """The only key has all the weight, so its value is the result."""
    codes = torch.arange(256).to(torch.uint8)
    want = codes.view(kind).float()
    odd = ~want.isfinite() | (want == -128)
    codes[odd], want[odd] = 0, 0
    cache = torch.full((2, 4, 256, 2), 0xFF, dtype=torch.uint8)
    cache[0], cache[1, 0, :, 0] = 0, codes
    q = torch.ones(heads, 256, dtype=dtype)
    out = torch.full_like(q, torch.nan)
    scales = torch.tensor([1.0, 0.25])
    table, starts, lengths = (torch.tensor(x).int() for x in ([[0]], [0, 1], [1]))
    native.paged_attention_8bit(
        *(t.data_ptr() for t in (out, q, *cache, table, starts, lengths)),
        *(0, 0, 1, heads, 1, 256, 8, 1, 256 * heads, 256 * heads, 2048, 2048, 1, 1.0, 0, 0.0),
        *(CODES[dtype], NARROW[kind], scales.data_ptr(), False),
    )
    assert torch.equal(out, (want / 4).to(dtype).expand(heads, -1))


@pytest.mark.parametrize("kind", NARROW)
def test_a_nan_of_8_bits_stays_nan(native: ModuleType, kind: torch.dtype) -> None:
    cache = torch.full((2, 8, 2, 4), 0x7F, dtype=torch.uint8)
    q, out = torch.ones(1, 8), torch.empty(1, 8)
    table, starts, lengths = (torch.tensor(x).int() for x in ([[0]], [0, 1], [2]))
    native.paged_attention_8bit(
        *(t.data_ptr() for t in (out, q, *cache, table, starts, lengths)),
        *(0, 0, 1, 1, 1, 8, 8, 1, 8, 8, 64, 64, 1, 1.0, 0, 0.0, 0, NARROW[kind], 0, False),
    )
    assert out.isnan().all() == kind.is_floating_point


def test_other_types_of_a_cache_are_refused(native: ModuleType, rng: torch.Generator) -> None:
    with pytest.raises(ValueError, match="cache dtype code 2"):
        native.paged_attention_8bit(
            *[0] * 9, 0, 1, 1, 8, 8, 0, 8, 8, 64, 64, 1, 1.0, 0, 0.0, 1, 2, 0, False
        )
