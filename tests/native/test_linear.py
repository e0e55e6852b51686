"""Packed linear kernels of every build against float64, on awkward shapes and hostile memory."""

import itertools
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hotshoe_native import MAX_INT8_K

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
SHAPES = [
    *[(1, 1, 2), (3, 17, 3), (5, 100, 64), (14, 33, 100), (16, 48, 1000), (37, 64, 65)],
    (70, 97, 1100),  # several spans on AMX tiles
]
NAN = float("nan")
UNIT = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half a step
FLOAT16_TINY = 2.0**-25  # half of float16's smallest step


@pytest.fixture
def native(native_or_emulated: ModuleType) -> ModuleType:
    return native_or_emulated


class Packed:
    """A weight packed in one piece, or as `cuts` say, in any order; gated where `gate` is given."""

    def __init__(
        self,
        native: ModuleType,
        w: Tensor,
        dtype: torch.dtype | None = None,
        gate: int | None = None,
    ) -> None:
        self.native, self.dtype, (self.n, self.k) = native, dtype or w.dtype, w.shape
        self.gate, self.columns = gate, self.n if gate is None else self.n // 2
        nbytes = native.linear_packed_nbytes(
            CODES[self.dtype], self.n, self.k, gated=gate is not None
        )
        self.memory = torch.full((nbytes + 64,), 0x7F, dtype=torch.uint8)
        self.offset = -self.memory.data_ptr() % 64
        self.bytes = self.memory[self.offset : self.offset + nbytes]

    def put(self, begin: int, rows: Tensor, scales: Tensor | None = None) -> "Packed":
        self.native.linear_pack_rows(
            *(CODES[self.dtype], self.bytes.data_ptr(), self.n, self.k, begin, len(rows)),
            *(CODES[rows.dtype], rows.data_ptr(), rows.stride(0)),
            scales.data_ptr() if scales is not None else 0,
            gated=self.gate is not None,
        )
        return self

    def __call__(
        self, x: Tensor, bias: Tensor | None = None, y_dtype: torch.dtype | None = None
    ) -> Tensor:
        """Run the kernel into a poisoned tensor with margins; nothing beside y may be written."""
        m, margin = len(x), 5
        room = torch.full((m + 2, self.columns + 2 * margin), NAN, dtype=y_dtype or x.dtype)
        y = room[1:-1, margin:-margin]
        self.native.linear(
            *(CODES[self.dtype], self.bytes.data_ptr(), self.n, self.k, m),
            *(
                CODES[x.dtype],
                x.data_ptr(),
                x.stride(0),
                bias.data_ptr() if bias is not None else 0,
            ),
            *(CODES[y.dtype], y.data_ptr(), y.stride(0)),
            **({} if self.gate is None else {"gate": self.gate}),
        )
        assert int(room.isnan().sum() - y.isnan().sum()) == room.numel() - y.numel()
        return y


def pack(
    native: ModuleType, w: Tensor, dtype: torch.dtype | None = None, gate: int | None = None
) -> Packed:
    return Packed(native, w, dtype, gate).put(0, w)


def strided(rng: torch.Generator, m: int, k: int, dtype: torch.dtype) -> Tensor:
    """Random rows whose surroundings are NaN: reading beyond a row shows."""
    room = torch.full((m + 2, k + 9), NAN, dtype=dtype)
    x = room[1:-1, 4 : 4 + k]
    x.copy_(torch.randn(m, k, generator=rng))
    return x


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 rows as float64 and their float32 scales."""
    wide = rows.float()
    scale = wide.abs().amax(1) / 127
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    return (wide * inverse[:, None]).round().double(), scale


def assert_close(y: Tensor, want: Tensor, magnitude: Tensor) -> None:
    """Within the rounding of float32 sums, whose terms add up to `magnitude`, and of y itself."""
    error = (y.double() - want).abs()
    allowed = 1e-6 * magnitude + UNIT[y.dtype] * want.abs() + FLOAT16_TINY
    assert bool((error <= allowed).all()), float(error.max())


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_float_weights(
    native: ModuleType, rng: torch.Generator, dtype: torch.dtype, m: int, n: int, k: int
) -> None:
    w, x = strided(rng, n, k, dtype), strided(rng, m, k, dtype)
    bias = torch.randn(n, generator=rng)
    want = x.double() @ w.double().T
    magnitude = x.double().abs() @ w.double().abs().T
    linear = pack(native, w)
    for y_dtype in (dtype, torch.float32, torch.float16):
        assert_close(linear(x, y_dtype=y_dtype), want, magnitude)
        assert_close(linear(x, bias, y_dtype), want + bias, magnitude + bias.abs())


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_int8_weights(
    native: ModuleType, rng: torch.Generator, dtype: torch.dtype, m: int, n: int, k: int
) -> None:
    w, x = strided(rng, n, k, dtype), strided(rng, m, k, dtype)
    x *= torch.logspace(-2, 2, m)[:, None].to(dtype)
    x[m // 2] = 0
    bias = torch.randn(n, generator=rng)
    (qw, w_scale), (qx, x_scale) = quantized(w), quantized(x)
    want = qx @ qw.T * x_scale.double()[:, None] * w_scale.double()
    linear = pack(native, w, torch.int8)
    for y_dtype in (dtype, torch.float32):
        assert_close(linear(x, y_dtype=y_dtype), want, want.abs())
        assert_close(linear(x, bias, y_dtype), want + bias, want.abs() + bias.abs())


def test_int8_extremes_do_not_saturate(native: ModuleType, rng: torch.Generator) -> None:
    signs = torch.randint(0, 2, (20, 512), generator=rng) * 2.0 - 1
    w, x = torch.cat([torch.ones(2, 512), signs]), torch.cat([-torch.ones(1, 512), signs])
    assert torch.equal(pack(native, 127 * w, torch.int8)(127 * x), 127 * 127 * (x @ w.T))


def test_the_longest_int8_sums_are_exact(native: ModuleType) -> None:
    """Stored weights may be -128; one more product could be too large for 32 bits."""
    k = MAX_INT8_K
    low, high = torch.full((1, k), -128, dtype=torch.int8), torch.full((6, k), 127.0)
    linear = Packed(native, low, torch.int8).put(0, low, torch.ones(1))
    for x in (high, high[:1]):
        assert linear(x).unique().tolist() == [-128.0 * 127 * k]
        assert linear(-x).unique().tolist() == [128.0 * 127 * k]
    with pytest.raises(ValueError, match=f"K of int8 weights must be at most {k}"):
        native.linear_packed_nbytes(3, 1, k + 1)


def test_rows_beyond_one_cache_block(native: ModuleType, rng: torch.Generator) -> None:
    m, n, k = 150, 40, 4096
    for dtype in (torch.bfloat16, torch.float32):
        w, x = strided(rng, n, k, dtype), strided(rng, m, k, dtype)
        magnitude = x.double().abs() @ w.double().abs().T
        assert_close(pack(native, w)(x), x.double() @ w.double().T, magnitude)


@pytest.mark.parametrize(("dtype", "k"), [(torch.bfloat16, 2048), (torch.float32, 1024)])
def test_bits_do_not_depend_on_where_rows_lie(
    native: ModuleType, rng: torch.Generator, dtype: torch.dtype, k: int
) -> None:
    x = strided(rng, 20, k, dtype)
    linear = pack(native, strided(rng, 70, k, dtype))
    assert torch.equal(linear(x), linear(x.contiguous()))  # rows 4 KiB apart are copied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_layout_is_the_same_for_all_builds(
    native: ModuleType, rng: torch.Generator, dtype: torch.dtype
) -> None:
    n, k, group = 19, 70, 4 // torch.empty((), dtype=dtype).element_size()
    w = torch.randn(n, k, generator=rng).to(torch.float32 if dtype == torch.int8 else dtype)
    stored, scale = quantized(w)
    values = stored.to(torch.int8) if dtype == torch.int8 else w
    padded = torch.zeros(32, -(-k // (16 * group)) * 16 * group, dtype=dtype)
    padded[:n, :k] = values
    blocks = padded.view(2, 16, -1, group).transpose(1, 2).contiguous()
    want = [blocks.view(torch.uint8).flatten()]
    if dtype == torch.int8:
        tail = torch.zeros(32)
        tail[:n] = scale
        want += [tail.view(torch.uint8), padded.sum(1, dtype=torch.int32).view(torch.uint8)]
    assert torch.equal(pack(native, w, dtype).bytes, torch.cat(want))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_parts_in_any_order_make_the_same_weight(
    native: ModuleType, rng: torch.Generator, dtype: torch.dtype
) -> None:
    w = strided(rng, 77, 50, torch.bfloat16)
    cuts = [0, 5, 32, 33, 70, 77]
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 17):
        parts = Packed(native, w, dtype)
        for i in order:
            parts.put(cuts[i], w[cuts[i] : cuts[i + 1]])
        assert torch.equal(parts.bytes, pack(native, w, dtype).bytes)


def test_int8_checkpoint_rows_keep_their_values(native: ModuleType, rng: torch.Generator) -> None:
    w = torch.randn(24, 40, generator=rng)
    values, scale = quantized(w)
    given = Packed(native, w, torch.int8).put(0, values.to(torch.int8), scale)
    assert torch.equal(given.bytes, pack(native, w, torch.int8).bytes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_result_depends_on_neither_threads_nor_other_rows(
    native: ModuleType, rng: torch.Generator, dtype: torch.dtype
) -> None:
    x_dtype = torch.float32 if dtype == torch.int8 else dtype
    w, x = strided(rng, 200, 1200, x_dtype), strided(rng, 70, 1200, x_dtype)
    linear = pack(native, w, dtype)
    want = linear(x)
    for threads in (1, 3):
        native.set_threads(threads)
        assert torch.equal(linear(x), want)
    few = 5 if "amx" in native.info()["isa"] and dtype == torch.bfloat16 else 1
    for rows in (few, 15, 16, 17, 33, 69):
        assert torch.equal(linear(x[:rows]), want[:rows])


@pytest.mark.parametrize(("m", "n", "k"), [(513, 45, 20), (769, 17, 2049), (1100, 97, 33)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_many_rows_on_any_number_of_threads(
    native: ModuleType, rng: torch.Generator, dtype: torch.dtype, m: int, n: int, k: int
) -> None:
    """From 256 rows a thread, threads may take rows of their own; the bits stay."""
    w, x = strided(rng, n, k, torch.bfloat16), strided(rng, m, k, torch.bfloat16)
    bias = torch.randn(n, generator=rng)
    linear = pack(native, w, dtype)
    y = linear(x, bias, torch.float32)
    if dtype == torch.int8:
        (qw, w_scale), (qx, x_scale) = quantized(w), quantized(x)
        want = qx @ qw.T * x_scale.double()[:, None] * w_scale.double()
        magnitude = want.abs()
    else:
        want = x.double() @ w.double().T
        magnitude = x.double().abs() @ w.double().abs().T
    assert_close(y, want + bias, magnitude + bias.abs())
    for threads in (1, 2, 3, 5):
        native.set_threads(threads)
        assert torch.equal(linear(x, bias, torch.float32), y)
    cuts = [0, 7, 200, 411, m]
    pieces = [linear(x[a:b], bias, torch.float32) for a, b in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat(pieces), y)


def gated(gates: Tensor, ups: Tensor, kind: int) -> Tensor:
    functions = (F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh"))
    return functions[kind](gates) * ups


@pytest.mark.parametrize(
    ("m", "inner", "k"), [(1, 1, 3), (5, 16, 64), (33, 75, 65), (70, 97, 1100)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("kind", range(3))
def test_gates_multiply_in_the_product(
    native: ModuleType,
    rng: torch.Generator,
    kind: int,
    dtype: torch.dtype,
    m: int,
    inner: int,
    k: int,
) -> None:
    x_dtype = torch.bfloat16 if dtype == torch.int8 else dtype
    w, x = strided(rng, 2 * inner, k, x_dtype), strided(rng, m, k, x_dtype)
    w *= 2 * k**-0.5  # gates within a few units, where activations bend
    bias = torch.randn(2 * inner, generator=rng)
    wide, rows = w.double(), x.double()
    if dtype == torch.int8:
        (qw, w_scale), (qx, x_scale) = quantized(w), quantized(x)
        wide, rows = qw * w_scale.double()[:, None], qx * x_scale.double()[:, None]
    linear = pack(native, w, dtype, kind)
    for y_dtype in (x_dtype, torch.float32, torch.float16):
        for offset in (None, bias):
            both = rows @ wide.T + (0 if offset is None else offset)
            error = 1e-6 * (rows.abs() @ wide.abs().T + (0 if offset is None else offset.abs()))
            (gates, ups), (e_gates, e_ups) = both.chunk(2, 1), error.chunk(2, 1)
            want = gated(gates, ups, kind)
            # No activation is steeper than 1.13; for 16-bit results all are within 1.4e-4.
            narrow = 0 if y_dtype == torch.float32 else 2e-4
            allowed = (1.13 * e_gates + 1e-6 * gates.abs()) * ups.abs() + gates.abs() * e_ups
            allowed += (UNIT[y_dtype] + narrow) * want.abs() + FLOAT16_TINY
            found = (linear(x, offset, y_dtype).double() - want).abs()
            assert bool((found <= allowed).all()), float((found - allowed).max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_gated_rows_are_the_same_however_they_come(
    native: ModuleType, rng: torch.Generator, dtype: torch.dtype
) -> None:
    x_dtype = torch.float32 if dtype == torch.int8 else dtype
    w, x = strided(rng, 2 * 45, 1200, x_dtype), strided(rng, 530, 1200, x_dtype)
    linear = pack(native, w, dtype, 0)
    cuts = [0, 7, 40, 52, 90]  # one part has gates and ups
    for order in itertools.permutations(range(4)):
        parts = Packed(native, w, dtype, 0)
        for i in order:
            parts.put(cuts[i], w[cuts[i] : cuts[i + 1]])
        assert torch.equal(parts.bytes, linear.bytes)
    want = linear(x)
    for threads in (1, 2, 3):
        native.set_threads(threads)
        assert torch.equal(linear(x), want)
    few = 5 if "amx" in native.info()["isa"] and dtype == torch.bfloat16 else 1
    for rows in (few, 16, 33, 257):
        assert torch.equal(linear(x[:rows]), want[:rows])


def test_int8_rows_too_small_to_scale_are_zeros(native: ModuleType, rng: torch.Generator) -> None:
    linear = pack(native, torch.randn(20, 70, generator=rng), torch.int8)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.full((3, 70), 1e-37, dtype=dtype)
        x[1] = -1e-30
        y = linear(x, y_dtype=torch.float32)
        assert not bool(y[0].any() or y[2].any())
        assert bool(y[1].any())  # a sum of int8 weights may be zero


@pytest.mark.parametrize("gate", [None, 0])
@pytest.mark.parametrize(
    ("dtype", "x_dtype"),
    [
        *[(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)],
        *[(torch.int8, torch.bfloat16), (torch.int8, torch.float32), (torch.int8, torch.float16)],
    ],
)
@pytest.mark.parametrize("poison", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [37, 99])
def test_poisoned_row_spoils_only_itself(
    native: ModuleType,
    rng: torch.Generator,
    dtype: torch.dtype,
    x_dtype: torch.dtype,
    poison: float,
    place: int,
    gate: int | None,
) -> None:
    w, x = strided(rng, 40, 100, x_dtype), strided(rng, 9, 100, x_dtype)
    linear = pack(native, w, dtype, gate)
    clean = linear(x)
    x[4, place] = poison
    y = linear(x)
    assert not bool(y[4].isfinite().any())
    assert torch.equal(y[torch.arange(9) != 4], clean[torch.arange(9) != 4])


def test_misuse_is_refused(native: ModuleType) -> None:
    w = torch.zeros(16, 8)
    with pytest.raises(ValueError, match="no packed weights of dtype code 2"):
        native.linear_packed_nbytes(2, 16, 8)
    with pytest.raises(ValueError, match="N and K must be at least 1"):
        native.linear_packed_nbytes(0, 16, 0)
    with pytest.raises(ValueError, match="N of a gated weight must be even"):
        native.linear_packed_nbytes(0, 15, 8, gated=True)
    with pytest.raises(ValueError, match="activation code 3 is unknown"):
        pack(native, torch.zeros(16, 8), gate=3)(torch.zeros(1, 8))
    with pytest.raises(ValueError, match="rows 9 to 25 are not within the 16 rows"):
        Packed(native, w).put(9, w)
    with pytest.raises(ValueError, match="only int8 weights are packed from another dtype"):
        Packed(native, w, torch.bfloat16).put(0, w)
    with pytest.raises(ValueError, match="int8 rows need their scales"):
        Packed(native, w, torch.int8).put(0, w.to(torch.int8))
    with pytest.raises(ValueError, match="x must have the dtype of the weights"):
        pack(native, w)(w.bfloat16(), y_dtype=torch.float32)
    with pytest.raises(ValueError, match="dtype code 3 is not a float"):
        pack(native, w, torch.int8)(w.to(torch.int8), y_dtype=torch.float32)
