"""q/k norm, rotary embedding and cache write against float64; nothing else may change."""

from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NARROW = {torch.int8: 3, torch.float8_e4m3fn: 4, torch.float8_e5m2: 5}
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2**-8, torch.float16: 2**-10}
MAX_POSITION = 200


@dataclass
class Case:
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 64
    block_size: int = 16
    norm: bool = False
    offset: float = 0.0
    interleaved: bool = False


CASES = {
    "plain": Case(),
    "norm": Case(norm=True),
    "norm-offset": Case(norm=True, offset=1.0, head_dim=80, rotary_dim=80),
    "partial": Case(head_dim=96, rotary_dim=24),
    "interleaved": Case(interleaved=True, rotary_dim=40),
    "no-rotation": Case(rotary_dim=0),
    "norm-only": Case(norm=True, rotary_dim=0),
    "tiny": Case(num_heads=1, num_kv_heads=1, head_dim=8, rotary_dim=6, block_size=8),
    "many-heads": Case(num_heads=18, num_kv_heads=1, norm=True),
    "large": Case(num_heads=3, num_kv_heads=3, head_dim=512, rotary_dim=512, norm=True),
}


def rotate(case: Case, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = case.rotary_dim // 2
    x, cos, sin = x.clone(), cos.double()[:, None], sin.double()[:, None]
    rotated = x[..., : case.rotary_dim]
    pairs = rotated.unflatten(-1, (half, 2) if case.interleaved else (2, half))
    a, b = pairs.unbind(-1 if case.interleaved else -2)
    turned = (a * cos - b * sin, b * cos + a * sin)
    rotated.copy_(torch.stack(turned, -1 if case.interleaved else -2).flatten(-2))
    return x


def norm(case: Case, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if not case.norm:
        return x
    rms = (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return x / rms * (case.offset + weight.double())


def slots(kind: str, count: int, num_slots: int, rng: torch.Generator) -> torch.Tensor:
    if kind == "consecutive":
        return torch.arange(5, 5 + count).int()
    shuffled = torch.randperm(num_slots, generator=rng)[:count].int()
    shuffled[::5] = -1
    return shuffled


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("kind", ["consecutive", "shuffled"])
@pytest.mark.parametrize("count", [0, 1, 53])
@pytest.mark.parametrize("name", CASES)
def test_matches_float64(
    native: ModuleType,
    name: str,
    count: int,
    kind: str,
    dtype: torch.dtype,
    rng: torch.Generator,
) -> None:
    case, p, num_blocks = CASES[name], 1 if dtype == torch.float32 else 2, 9
    heads, kv, dim, size = case.num_heads, case.num_kv_heads, case.head_dim, case.block_size
    total = heads + 2 * kv
    wide = torch.full((count, total * dim + 7), torch.nan, dtype=dtype)
    wide[:, : total * dim] = torch.randn(count, total * dim, generator=rng)
    before = wide.clone()
    positions = torch.randint(0, MAX_POSITION, (count,), generator=rng).int()
    angles = torch.rand(MAX_POSITION, case.rotary_dim // 2, generator=rng) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1).contiguous()
    q_weight, k_weight = torch.randn(2, dim, generator=rng).to(dtype)
    slot_mapping = slots(kind, count, num_blocks * size, rng)
    cache = torch.full((2, num_blocks, kv * size * dim), torch.nan, dtype=dtype)
    native.rotary_and_cache(
        *(wide.data_ptr(), positions.data_ptr()),
        *(cos_sin.data_ptr() if case.rotary_dim else 0, cache[0].data_ptr(), cache[1].data_ptr()),
        *(slot_mapping.data_ptr(), q_weight.data_ptr() * case.norm),
        *(k_weight.data_ptr() * case.norm, count, heads, kv, dim, case.rotary_dim, size),
        *(wide.stride(0), cache.stride(1), size * dim),
        *(1e-5, case.offset, case.interleaved, CODES[dtype]),
    )

    heads_TND = before[:, : total * dim].double().unflatten(-1, (total, dim))
    cos, sin = cos_sin[positions.long()].chunk(2, -1)
    q = rotate(case, norm(case, heads_TND[:, :heads], q_weight), cos, sin)
    k = rotate(case, norm(case, heads_TND[:, heads : heads + kv], k_weight), cos, sin)
    v = before[:, (heads + kv) * dim : total * dim].unflatten(-1, (kv, dim))
    bound = TOLERANCE[dtype] * (1 + k.abs().amax(-1, keepdim=True)) if count else 0
    q_bound = TOLERANCE[dtype] * (1 + q.abs().amax(-1, keepdim=True)) if count else 0
    actual_q = wide[:, : heads * dim].unflatten(-1, (heads, dim)).double()
    assert ((actual_q - q).abs() <= q_bound).all()
    torch.testing.assert_close(
        wide[:, heads * dim :], before[:, heads * dim :], rtol=0, atol=0, equal_nan=True
    )

    keys = cache[0].view(num_blocks, kv, dim // p, size, p).permute(0, 3, 1, 2, 4).flatten(-2)
    values = cache[1].view(num_blocks, kv, size // p, dim, p).permute(0, 2, 4, 1, 3)
    keys, values = keys.flatten(0, 1), values.flatten(0, 2)
    used = slot_mapping >= 0
    written = slot_mapping[used].long()
    if count:
        assert ((keys[written].double() - k[used]).abs() <= bound[used]).all()
    assert torch.equal(values[written], v[used])
    untouched = torch.ones(num_blocks * size, dtype=torch.bool)
    untouched[written] = False
    assert keys[untouched].isnan().all()
    assert values[untouched].isnan().all()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((514, 64, 16), "head_dim"), ((64, 66, 16), "rotary_dim"), ((64, 64, 5), "block_size")],
)
def test_impossible_sizes_are_refused(
    native: ModuleType, sizes: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        native.rotary_and_cache(*[0] * 8, 0, 1, 1, *sizes, 0, 0, 0, 1e-6, 0.0, False, 0)


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("by_token", [False, True])
def test_8_bits_are_rounded_as_pytorch_does(
    native: ModuleType, by_token: bool, dtype: torch.dtype, kind: torch.dtype, rng: torch.Generator
) -> None:
    """Large, subnormal and impossible numbers among them; scales by token map the largest one."""
    heads, dim, size, count = 2, 24, 8, 13
    limit = 127.0 if kind == torch.int8 else torch.finfo(kind).max
    exponents = torch.randint(-20, 12, (count, 3 * heads, dim), generator=rng)
    x = (torch.randn(exponents.shape, generator=rng) * 2.0**exponents).to(dtype)
    x[3], x[5, :, 7] = 0, torch.nan
    qkv = x.clone()
    numel = size * heads * dim
    cache = torch.full((2, 3, numel + 4 * size * heads * by_token), 0xAA, dtype=torch.uint8)
    given = torch.tensor([0.5, 4.0])
    slot_mapping = torch.randperm(3 * size, generator=rng)[:count].int()
    native.rotary_and_cache_8bit(
        *(qkv.data_ptr(), 0, 0, *(part.data_ptr() for part in cache), slot_mapping.data_ptr()),
        *(0, 0, count, heads, heads, dim, 0, size, 3 * heads * dim, cache.stride(1), size * dim),
        *(1e-6, 0.0, False, CODES[dtype], NARROW[kind]),
        *(0 if by_token else given.data_ptr(), by_token),
    )
    k, v = (part[:, :numel].view(kind) for part in cache)
    k = k.view(3, heads, dim // 2, size, 2).permute(0, 3, 1, 2, 4).reshape(3 * size, heads, dim)
    v = v.view(3, heads, size // 2, dim, 2).permute(0, 2, 4, 1, 3).reshape(3 * size, heads, dim)
    for part, found in enumerate((k, v)):
        own = x[:, heads * (part + 1) :][:, :heads].float()
        scale = given[part]
        if by_token:
            largest = own.abs().amax(-1, keepdim=True)
            scale = torch.where(largest == 0, 1.0, largest / limit)
            behind = cache[part, :, numel:].view(torch.float32)
            stored = behind.view(3, heads, size).transpose(1, 2).reshape(3 * size, heads, 1)
            actual = stored[slot_mapping.long()]
            torch.testing.assert_close(actual, scale, rtol=0, atol=0, equal_nan=True)
        number = (own / scale).clamp(-limit, limit)
        known = ~number.isnan()
        number = (number.nan_to_num().round() if kind == torch.int8 else number).to(kind).float()
        actual = found[slot_mapping.long()].float()
        assert torch.equal(actual[known], number[known])
        assert actual[~known].isnan().all() or kind == torch.int8
