"""Recurrences over states: the causal convolution in front of them, and how prompts are cut.

The convolution is over the last inputs that sequences carry on.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import exp, sigmoid

#: What a token leaves of a state is 0 in float32 from this logarithm on.
FADED = tl.constexpr(-128.0)
#: Logarithms are multiples of 1 / FINE, and rests below that.
FINE = tl.constexpr(256.0)


@triton.jit
def column_of(length, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr):
    """Return the column of a block table where the state behind so many tokens lies."""
    if SINGLE:
        column = length * 0
    else:
        column = (length - 1) // BLOCK_SIZE
    return column


@triton.jit
def block_of(columns, length, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr):
    """Return the block where the state behind so many tokens lies; some block if there are none."""
    column = column_of(length, BLOCK_SIZE, SINGLE)
    return tl.load(columns + column, mask=length > 0, other=0).to(tl.int64)


@triton.jit
def softplus(x):
    """Return log(1 + exp(x)) without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1 + exp(-tl.abs(x)))


@triton.jit
def split(x, PARTS: tl.constexpr):
    """Return a number as the sum of two bfloat16; the second counts if there are two PARTS.

    With 0 PARTS the number stays as it is.
    """
    if PARTS == 0:
        high, low = x, x
    else:
        high = x.to(tl.bfloat16)
        low = (x - high.to(tl.float32)).to(tl.bfloat16)
    return high, low


@triton.jit
def whole(high, low, PARTS: tl.constexpr):
    """Return numbers that `split` split."""
    x = high.to(tl.float32)
    if PARTS == 2:
        x += low.to(tl.float32)
    return x


@triton.jit
def add_product(a_high, a_low, b_high, b_low, sums, PARTS: tl.constexpr):
    """Return sums + a b, of numbers as `split` returns them."""
    if PARTS == 0:
        sums = tl.dot(a_high, b_high, sums, input_precision="ieee")
    else:
        if PARTS == 2:
            sums = tl.dot(a_low, b_high, sums)
            sums = tl.dot(a_high, b_low, sums)
        sums = tl.dot(a_high, b_high, sums)
    return sums


@triton.jit
def product(a, b, sums, PARTS: tl.constexpr):
    """Return sums + a b, with as many bfloat16 for each number, one or two; 0 leaves float32."""
    a_high, a_low = split(a, PARTS)
    b_high, b_low = split(b, PARTS)
    return add_product(a_high, a_low, b_high, b_low, sums, PARTS)


@triton.jit
def load_split(ptrs, apart, there, PARTS: tl.constexpr):
    """Load numbers that `store_split` stored."""
    high = tl.load(ptrs, mask=there, other=0.0)
    low = high
    if PARTS == 2:
        low = tl.load(ptrs + apart, mask=there, other=0.0)
    return high, low


@triton.jit
def store_split(ptrs, apart, x, there, PARTS: tl.constexpr):
    """Store numbers as `split` returns them, the second part so many elements behind the first."""
    high, low = split(x, PARTS)
    tl.store(ptrs, high, mask=there)
    if PARTS == 2:
        tl.store(ptrs + apart, low, mask=there)


@triton.jit
def row_of(place, starts_ptr, rows, SIZE: tl.constexpr, SPARE: tl.constexpr):
    """Return the row of a place, where each row has a place for SIZE tokens and SPARE more."""
    row, above = 0, rows
    while above - row > 1:
        middle = (row + above) // 2
        beyond = tl.load(starts_ptr + middle) // SIZE + SPARE * middle > place
        above = tl.where(beyond, middle, above)
        row = tl.where(beyond, row, middle)
    return row


@triton.jit
def chunk_at(position, SPAN: tl.constexpr, BLOCK_L: tl.constexpr):
    """Return the number of the chunk that a position is in; see `tokens_of`."""
    PIECES: tl.constexpr = (SPAN + BLOCK_L - 1) // BLOCK_L
    return position // SPAN * PIECES + position % SPAN // BLOCK_L


@triton.jit
def keep_state(
    ptrs, table_ptr, length, state, there, block_stride,
    BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    """Store the state behind so many tokens in their block."""
    block = block_of(table_ptr, length, BLOCK_SIZE, SINGLE)
    tl.store(ptrs + block * block_stride, state.to(ptrs.dtype.element_ty), mask=there)


@triton.jit
def tokens_of(chunk, begin, before, length, SPAN: tl.constexpr, BLOCK_L: tl.constexpr):
    """Return a chunk's tokens, whether the step has them, and the position behind them.

    Positions are cut into spans, and these into chunks, so that the cut is the same in every step.
    """
    PIECES: tl.constexpr = (SPAN + BLOCK_L - 1) // BLOCK_L
    low = chunk // PIECES * SPAN + chunk % PIECES * BLOCK_L
    high = tl.minimum(tl.minimum(low + BLOCK_L, (chunk // PIECES + 1) * SPAN), length)
    place_L = low + tl.arange(0, BLOCK_L)
    return (
        (begin + place_L - before).to(tl.int64),
        (place_L >= before) & (place_L < high),
        high,
    )


@triton.jit
def convolved(ptrs, there, SIZE: tl.constexpr, GATED: tl.constexpr):
    """Return inputs of the convolution, float32: the columns given, or, where these are gates,
    their products with the columns two sections behind."""
    x = tl.load(ptrs, mask=there, other=0.0).to(tl.float32)
    if GATED:
        x *= tl.load(ptrs + 2 * SIZE, mask=there, other=0.0).to(tl.float32)
    return x


@triton.jit
def seen(
    inputs, old, place, wanted, begin, known, channels, there, stride_input,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Return inputs at places counted from a step's first token on; those before it were kept."""
    new = (wanted & (place >= 0))[:, None] & there[None, :]
    carried = (wanted & (place < 0) & known)[:, None] & there[None, :]
    rows = (begin + place).to(tl.int64)[:, None] * stride_input
    x = convolved(inputs + rows + channels[None, :], new, SIZE, GATED)
    kept = old + (place + WIDTH - 1)[:, None] * SIZE + channels[None, :]
    return x + tl.load(kept, mask=carried, other=0.0).to(tl.float32)


@triton.jit
def opened(x, gates, there, GATED: tl.constexpr, SILU: tl.constexpr):
    """Return x times its gates, or SiLU of x where there are none, or x itself."""
    if GATED:
        x *= tl.load(gates, mask=there, other=0.0).to(tl.float32)
    elif SILU:
        x *= sigmoid(x)
    return x


@triton.jit
def taps_of(taps, channels, there, WIDTH: tl.constexpr):
    """Return the taps of some channels, [channels, WIDTH or more] float32, read in one piece.

    One tap of each channel would be a read of many lines, and that of the next tap, of the same.
    """
    at = tl.arange(0, triton.next_power_of_2(WIDTH))
    ptrs = taps + channels[:, None] * WIDTH + at[None, :]
    return tl.load(ptrs, mask=there[:, None] & (at < WIDTH)[None, :], other=0.0).to(tl.float32)


@triton.jit
def tap_of(taps, j):
    """Return one tap of each channel."""
    return tl.sum(tl.where((tl.arange(0, taps.shape[1]) == j)[None, :], taps, 0.0), 1)


@triton.jit
def convolved_tile(
    inputs, old, taps, token, wanted, begin, known, channels, there, stride_input,
    SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return a tile of inputs, convolved, behind SiLU, where `token` and `channels` are."""
    at, taps = (token - begin).to(tl.int32), taps_of(taps, channels, there, WIDTH)
    total = tl.zeros((token.shape[0], channels.shape[0]), tl.float32)
    if tl.min(at, 0) < WIDTH - 1:
        for j in range(WIDTH):
            x = seen(inputs, old, at - (WIDTH - 1) + j, wanted, begin, known, channels, there,
                     stride_input, SIZE, WIDTH, False)  # fmt: skip
            total += x * tap_of(taps, j)[None, :]
    else:
        ptrs = inputs + (token - (WIDTH - 1))[:, None] * stride_input + channels[None, :]
        for j in tl.static_range(WIDTH):
            x = tl.load(ptrs, mask=wanted[:, None] & there[None, :], other=0.0).to(tl.float32)
            ptrs += stride_input
            total += x * tap_of(taps, j)[None, :]
    return total * sigmoid(total)


@triton.jit
def store_mixed(
    out, parts, x, tokens, channels, there, several, apart, SIZE: tl.constexpr,
    WHOLE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Store what the convolution made; see `convolve`."""
    place = out + tokens * SIZE + channels[None, :]
    if WHOLE == SIZE:
        tl.store(place, x.to(out.dtype.element_ty), mask=there)
    else:
        kept = (channels < WHOLE) | several
        tl.store(place, x.to(out.dtype.element_ty), mask=there & kept[None, :])
        place = parts + tokens * (SIZE - WHOLE) + (channels - WHOLE)[None, :]
        store_split(place, apart, x, there & (channels >= WHOLE)[None, :], PARTS)


@triton.jit(do_not_specialize=["rows", "apart"])
def convolve(
    out,  # [tokens, SIZE] float32, or the model's type where GATED
    parts,  # [1 or 2, tokens, SIZE - WHOLE], parts of a number first
    inputs,  # [tokens, SIZE], rows apart; where GATED [tokens, 3 SIZE]: gate, gate behind, x
    cache,  # [blocks, WIDTH - 1, SIZE]
    taps, bias,  # [SIZE, WIDTH] and [SIZE]
    table, starts, lens,  # [rows, columns], [rows + 1] and [rows] int32
    rows, apart, stride_input, stride_block, stride_table,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BIAS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SINGLE: tl.constexpr, ALL: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
    MOST: tl.constexpr, GATED: tl.constexpr, WHOLE: tl.constexpr, PARTS: tl.constexpr,
    SILU: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Convolve a sequence's tokens in a block of channels, apply SiLU or the gate behind, or
    neither, and keep the last inputs.

    Grid: (places, SIZE / BLOCK_C); a row has a place for each BLOCK_T tokens. The program of the
    first tokens alone reads and writes these channels of the sequence's states, in this order.
    Rows of more than MOST tokens are left out, unless MOST is 0. Columns from WHOLE on go to
    `parts`, PARTS for a number, as products take them; `out` has them, too, if there are several
    rows.
    """
    place, channels = tl.program_id(0), tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    there = channels < SIZE
    wait(CHAINED)
    if BLOCK_T == 1:
        row, first = place, 0
    else:
        row = row_of(place, starts, rows, BLOCK_T, 1)
    begin, end, length = tl.load(starts + row), tl.load(starts + row + 1), tl.load(lens + row)
    if BLOCK_T > 1:
        first = (place - begin // BLOCK_T - row) * BLOCK_T
    count = end - begin
    before = length - count
    if (first >= count) | ((MOST > 0) & (count > MOST)):
        return
    columns = table + row.to(tl.int64) * stride_table
    old = cache + block_of(columns, before, BLOCK_SIZE, SINGLE) * stride_block
    at = first + tl.arange(0, BLOCK_T)
    total = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    if BIAS:
        total += tl.load(bias + channels, mask=there, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(WIDTH):
        x = seen(inputs, old, at - (WIDTH - 1) + j, at < count, begin, before > 0, channels,
                 there, stride_input, SIZE, WIDTH, GATED)  # fmt: skip
        tap = tl.load(taps + channels * WIDTH + j, mask=there, other=0.0).to(tl.float32)
        total += x * tap[None, :]
    tokens, mask = (begin + at).to(tl.int64)[:, None], (at < count)[:, None] & there[None, :]
    gates = inputs + tokens * stride_input + SIZE + channels[None, :]
    total = opened(total, gates, mask, GATED, SILU)
    store_mixed(
        out, parts, total, tokens, channels, mask, rows > 1, apart, SIZE, WHOLE, PARTS
    )  # fmt: skip
    if first > 0:
        return
    keep_all(
        inputs, old, cache, columns, channels, there, begin, count, before, stride_input,
        stride_block, SIZE, WIDTH, BLOCK_SIZE, SINGLE, ALL, GATED,
    )  # fmt: skip


@triton.jit
def keep_inputs(
    inputs, cache, table, starts, lens, stride_input, stride_block, stride_table,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr,
    ALL: tl.constexpr, BLOCK_C: tl.constexpr, MOST: tl.constexpr, GATED: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Keep the last inputs of rows of more than MOST tokens. Grid: (rows, SIZE / BLOCK_C)."""
    row, channels = tl.program_id(0), tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    wait(CHAINED)
    begin, end, length = tl.load(starts + row), tl.load(starts + row + 1), tl.load(lens + row)
    if end - begin <= MOST:
        return
    before, columns = length - (end - begin), table + row.to(tl.int64) * stride_table
    old = cache + block_of(columns, before, BLOCK_SIZE, SINGLE) * stride_block
    keep_all(
        inputs, old, cache, columns, channels, channels < SIZE, begin, end - begin, before,
        stride_input, stride_block, SIZE, WIDTH, BLOCK_SIZE, SINGLE, ALL, GATED,
    )  # fmt: skip


@triton.jit
def keep_all(
    inputs, old, cache, columns, channels, there, begin, count, before, stride_input, stride_block,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr,
    ALL: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Keep the last inputs of a step, and with ALL those at each end of a block."""
    keep(
        inputs, old, cache, columns, channels, there, begin, count, before,
        stride_input, stride_block, SIZE, WIDTH, BLOCK_SIZE, SINGLE, GATED,
    )  # fmt: skip
    if ALL:
        # From the last end of a block to the first, whose block may be the one that is read.
        for i in range((before + count - 1) // BLOCK_SIZE - before // BLOCK_SIZE):
            done = ((before + count - 1) // BLOCK_SIZE - i) * BLOCK_SIZE - before
            keep(
                inputs, old, cache, columns, channels, there, begin, done, before,
                stride_input, stride_block, SIZE, WIDTH, BLOCK_SIZE, SINGLE, GATED,
            )  # fmt: skip


@triton.jit
def keep(
    inputs,
    old,
    cache,
    columns,
    channels,
    there,
    begin,
    done,
    before,
    stride_input,
    stride_block,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SINGLE: tl.constexpr,
    GATED: tl.constexpr,
):
    """Write the last inputs up to the first `done` tokens of a step to their block.

    The block may be the one that is read, so rows move from the oldest on, each behind a barrier.
    """
    block = tl.load(columns + column_of(before + done, BLOCK_SIZE, SINGLE)).to(tl.int64)
    for j in tl.static_range(WIDTH - 1):
        place = done - (WIDTH - 1) + j
        new = inputs + (begin + place).to(tl.int64) * stride_input + channels
        values = convolved(new, there & (place >= 0), SIZE, GATED)
        values += tl.load(
            old + (place + WIDTH - 1) * SIZE + channels,
            mask=there & (place < 0) & (before > 0),
            other=0.0,
        ).to(tl.float32)
        tl.debug_barrier()
        kept = values.to(cache.dtype.element_ty)
        tl.store(cache + block * stride_block + j * SIZE + channels, kept, mask=there)
