"""Products with grouped weights in every build against float64, beside poisoned memory."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NAN = float("nan")
OFFSET = 8
#: Rounding of weights or results, and of sums.
UNIT = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
#: Rounding of the scales that x of a type meets.
SCALES = {torch.float32: 0.0, torch.bfloat16: 2.0**-11}


class Weight:
    """Random values, scales and minima, and what they stand for in float64.

    Values are codes of what a table holds, if there is one.
    """

    def __init__(
        self, bits: int, n: int, k: int, group: int, minima: bool, table: bool = False
    ) -> None:
        self.minima, self.offset = minima, 0 if table else OFFSET
        self.table = torch.randperm(256)[: 2**bits].to(torch.int8) if table else None
        #: As kernels want it.
        self.spread = None if self.table is None else self.table.repeat(16 // 2**bits)
        address = 0 if self.spread is None else self.spread.data_ptr()
        self.shape = (bits, n, k, group, address)
        q = torch.randint(0, 2**bits, (n, k), dtype=torch.uint8)
        self.q = q if self.table is None else self.table[q.long()]
        self.d = torch.randn(n, k // group) * 0.1
        self.m = torch.randn(n, k // group) if minima else None
        scale = self.d.double().repeat_interleave(group, 1)
        least = -scale * self.offset
        if self.m is not None:
            least = self.m.double().repeat_interleave(group, 1)
        self.wide = scale * self.q + least
        self.size = (scale * self.q).abs() + least.abs()

    def pack(
        self, native: ModuleType, cuts: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
    ) -> Tensor:
        n = self.shape[1]
        nbytes = native.linear_groups_nbytes(*self.shape, self.minima, CODES[dtype])
        memory = torch.zeros(nbytes + 64, dtype=torch.uint8)
        packed = memory[-memory.data_ptr() % 64 :][:nbytes]
        for begin, end in reversed(list(zip((0, *cuts), (*cuts, n), strict=True))):
            rows = [None if t is None else t[begin:end] for t in (self.q, self.d, self.m)]
            addresses = [0 if t is None else t.data_ptr() for t in rows]
            native.linear_groups_pack(
                *(*self.shape, CODES[dtype], packed.data_ptr(), begin, end - begin), *addresses
            )
        return packed


def run(
    native: ModuleType,
    w: Weight,
    packed: Tensor,
    x: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    m, n, margin = len(x), w.shape[1], 3
    memory = torch.full((m, n + margin), NAN, dtype=dtype)
    native.linear_groups(
        *(*w.shape, w.offset, w.minima, packed.data_ptr(), m, CODES[x.dtype], x.data_ptr()),
        *(x.stride(0), 0 if bias is None else bias.data_ptr()),
        *(CODES[dtype], memory.data_ptr(), n + margin),
    )
    assert memory[:, n:].isnan().all()
    return memory[:, :n]


@pytest.mark.parametrize("minima", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (16, 64, 32), (37, 96, 16), (75, 320, 64), (33, 40, 40)]
)
@pytest.mark.parametrize(
    ("bits", "table"), [(4, False), (6, False), (8, False), (2, True), (4, True)]
)
def test_products(
    native: ModuleType, bits: int, table: bool, shape: tuple[int, int, int], minima: bool
) -> None:
    n, k, group = shape
    if bits in (2, 6):  # whose groups are of 16 values
        k, group = k // group * -(-group // 16) * 16, -(-group // 16) * 16
    w = Weight(bits, n, k, group, minima, table)
    # More rows meet weights in the dtype of x.
    direct = 4 if "amx" in native.__name__ else 8 if bits == 8 and "bf16" in native.__name__ else 16
    for m in (0, 1, 2, 3, 5, 9, 16, 17, 40):
        for x_dtype in (torch.float32, torch.bfloat16):
            packed = w.pack(native, dtype=x_dtype)
            x = torch.randn(m, k + 5).to(x_dtype)[:, :k]
            for y_dtype, bias in ((torch.float32, torch.randn(n)), (x_dtype, None)):
                got = run(native, w, packed, x, bias, y_dtype).double()
                want = x.double() @ w.wide.T + (0 if bias is None else bias.double())
                size = x.double().abs() @ w.size.T + (0 if bias is None else bias.double().abs())
                unit = UNIT[y_dtype] + (UNIT[x_dtype] if m > direct else UNIT[torch.float32])
                unit += SCALES[x_dtype]
                assert ((got - want).abs() <= unit * size).all(), (m, x_dtype, y_dtype)


@pytest.mark.parametrize("size", [1e-30, 1e-8, 1e4, 1e30])
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_scales_of_any_size_keep_their_bits(native: ModuleType, bits: int, size: float) -> None:
    w = Weight(bits, 20, 64, 32, True)
    assert w.m is not None
    w.d *= size
    w.m *= size
    packed = w.pack(native, dtype=torch.bfloat16)
    for m in (1, 4, 20):
        x = torch.randn(m, 64).bfloat16()
        got = run(native, w, packed, x, None, torch.float32).double() / size
        unit = UNIT[torch.bfloat16] if m == 20 else 2.0**-11
        wide = x.double().abs() @ w.size.T
        assert ((got - x.double() @ w.wide.T).abs() <= unit * wide).all()


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 16), (torch.bfloat16, 4)])
def test_a_row_depends_on_no_other(native: ModuleType, dtype: torch.dtype, rows: int) -> None:
    w = Weight(4, 100, 256, 32, True)
    packed, x = w.pack(native, dtype=dtype), torch.randn(rows, 256).to(dtype)
    whole = run(native, w, packed, x, None, torch.float32)
    native.set_threads(1)
    for begin, end in ((0, 1), (rows // 4, rows // 2), (rows - 1, rows)):
        part = run(native, w, packed, x[begin:end], None, torch.float32)
        assert torch.equal(part, whole[begin:end])


def test_rows_come_in_any_order(native: ModuleType) -> None:
    w = Weight(8, 50, 64, 32, True)
    assert torch.equal(w.pack(native), w.pack(native, cuts=(1, 20, 33)))


def test_what_is_not_a_number_stays_in_its_row(native: ModuleType) -> None:
    w = Weight(4, 20, 64, 32, False)
    for m in (3, 20):
        x = torch.randn(m, 64)
        x[1, 7] = NAN
        lost = run(native, w, w.pack(native), x, None, torch.float32).isnan()
        assert lost[1].all() and lost.sum() == 20


@pytest.mark.parametrize(
    "sizes",
    [
        *((5, 4, 32, 32), (4, 0, 32, 32), (4, 4, 48, 32), (4, 4, 32, 4), (8, 4, 32, 0)),
        *((6, 4, 32, 8), (2, 4, 32, 32)),
    ],
)
def test_sizes_that_cannot_be(native: ModuleType, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"bits|at least 1|multiple"):
        native.linear_groups_nbytes(*sizes, 0, False, 0)
    with pytest.raises(ValueError, match="codes of 2 or 4"):
        native.linear_groups_nbytes(8, 4, 32, 32, 64, False, 0)


def test_calls_that_cannot_be(native: ModuleType) -> None:
    w = Weight(4, 4, 32, 32, False)
    packed = w.pack(native)
    with pytest.raises(ValueError, match="x must be float32 or bfloat16"):
        run(native, w, packed, torch.ones(1, 32).half(), None, torch.float32)
    with pytest.raises(ValueError, match="x must be float32 or bfloat16"):
        w.pack(native, dtype=torch.float16)
    with pytest.raises(ValueError, match="rows beyond the weight's 4"):
        native.linear_groups_pack(*w.shape, 0, packed.data_ptr(), 3, 2, w.q.data_ptr(), 1, 0)
    w = Weight(2, 4, 32, 32, False, table=True)
    assert w.spread is not None
    w.q[3, 31] = next(n for n in range(5) if n not in w.spread.tolist())
    with pytest.raises(ValueError, match="the table lacks some of the values"):
        w.pack(native)
