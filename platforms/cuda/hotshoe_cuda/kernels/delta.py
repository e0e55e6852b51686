"""The gated delta rule over prompts, for sm_90: a state taken through its chunks.

As `carry_chunks` of the portable kernels. A warpgroup carries 64 rows of a head's state. All that
comes from a state stays in registers, in the form in which the matrix units take it from there.
Products that nothing waits for run behind others, and the copy engine brings the next chunk
meanwhile. Triton waits for each product, so this is Gluon.

Shape suffixes: L tokens of a chunk, K channels of keys, V rows of the state.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from hotshoe_cuda.kernels.streamed import barrier, wait
from hotshoe_triton.kernels import delta_chunks, states

#: Tokens of a chunk, channels of a key, rows of a state that a program takes; places of the ring.
TOKENS, KEYS, ROWS, STAGES = gl.constexpr(64), gl.constexpr(128), gl.constexpr(64), gl.constexpr(2)
SPARE = delta_chunks.SPARE

chunk_at = gluon.jit(states.chunk_at.fn)


@gluon.jit
def block_of(columns, length, BLOCK_SIZE: gl.constexpr, SINGLE: gl.constexpr):
    """Return the block where the state behind so many tokens lies; some block if there are none."""
    column = length * 0
    if not SINGLE:
        column = (length - 1) // BLOCK_SIZE
    return gl.load(columns + column, mask=length > 0, other=0).to(gl.int64)


@gluon.jit
def keep_state(
    ptrs, columns, length, state, block_stride, BLOCK_SIZE: gl.constexpr, SINGLE: gl.constexpr
):
    """Store the state behind so many tokens in their block."""
    block = block_of(columns, length, BLOCK_SIZE, SINGLE)
    gl.store(ptrs + block * block_stride, state.to(ptrs.dtype.element_ty))


@gluon.jit
def span_of(chunk, before, length, SPAN: gl.constexpr):
    """Return where the chunk's tokens begin, which of them come first here, and which last."""
    PIECES: gl.constexpr = (SPAN + TOKENS - 1) // TOKENS
    low = chunk // PIECES * SPAN + chunk % PIECES * TOKENS
    high = gl.minimum(gl.minimum(low + TOKENS, (chunk // PIECES + 1) * SPAN), length)
    return low, gl.maximum(before, low), high


@gluon.jit
def copy_numbers(tile, ptr, low, first, high):
    """Ask for a number of each token."""
    ALONG: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = low + gl.arange(0, TOKENS, ALONG)
    async_copy.async_copy_global_to_shared(tile, ptr + at, mask=(at >= first) & (at < high))


@gluon.jit
def ask(
    rings, bars, slot, descs, faded_ptr, begins, low, first, high, tokens,
    HEADS: gl.constexpr, KEY_HEADS: gl.constexpr,
):  # fmt: skip
    """Ask for all that a chunk takes."""
    shared, own, token, column = begins
    k, low_k, q, solved, low_solved, scores, v, since, until = rings
    k_desc, q_desc, solved_desc, scores_desc, v_desc = descs
    bar = bars.index(slot)
    mbarrier.expect(bar, TOKENS * (6 * KEYS + 6 * TOKENS + 4 * ROWS))
    shared += low
    tma.async_copy_global_to_shared(k_desc, [shared, 0], bar, k.index(slot))
    tma.async_copy_global_to_shared(
        k_desc, [shared + KEY_HEADS * tokens, 0], bar, low_k.index(slot)
    )
    copy_numbers(since.index(slot), faded_ptr + own, low, first, high)
    copy_numbers(until.index(slot), faded_ptr + own + HEADS * tokens, low, first, high)
    async_copy.commit_group()
    own += low
    tma.async_copy_global_to_shared(q_desc, [shared, 0], bar, q.index(slot))
    tma.async_copy_global_to_shared(v_desc, [token + low, column], bar, v.index(slot))
    tma.async_copy_global_to_shared(solved_desc, [own, 0], bar, solved.index(slot))
    tma.async_copy_global_to_shared(
        solved_desc, [own + HEADS * tokens, 0], bar, low_solved.index(slot)
    )
    tma.async_copy_global_to_shared(scores_desc, [own, 0], bar, scores.index(slot))


@gluon.jit
def clear(tile, begin, end, LAYOUT: gl.constexpr):
    """Put zeros before `begin` and from `end` on: anything may lie there, NaN too."""
    at = gl.arange(0, tile.shape[0], gl.SliceLayout(1, LAYOUT))
    rows = tile.load(LAYOUT)
    tile.store(gl.where(((at >= begin) & (at < end))[:, None], rows, gl.zeros_like(rows)))


@gluon.jit
def clear_chunk(rings, slot, begin, end):
    """Clear what the step has no tokens for, so that it changes neither state nor results."""
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    NARROW: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    FLOATS: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    k, low_k, _q, solved, low_solved, _scores, v, _since, _until = rings
    clear(k.index(slot), begin, end, WIDE)
    clear(low_k.index(slot), begin, end, WIDE)
    clear(solved.index(slot), begin, end, NARROW)
    clear(low_solved.index(slot), begin, end, NARROW)
    clear(v.index(slot), begin, end, FLOATS)


@gluon.jit
def begin_product(a, b_high, b_low, sums, use_sums: gl.constexpr, LAYOUT: gl.constexpr):
    """Begin sums + a b, two bfloat16 for each number of both; return a's first ones as well."""
    high, low = gl.inline_asm_elementwise(
        """{
        .reg .b32 first, second;
        .reg .f32 rest, others;
        cvt.rn.bf16x2.f32 $0, $3, $2;
        shl.b32 first, $0, 16;
        and.b32 second, $0, 0xffff0000;
        sub.f32 rest, $2, first;
        sub.f32 others, $3, second;
        cvt.rn.bf16x2.f32 $1, others, rest;
        }""",
        "=r,=r,r,r",
        [a],
        dtype=(gl.bfloat16, gl.bfloat16),
        is_pure=True,
        pack=2,
    )
    a_high, a_low = gl.convert_layout(high, LAYOUT), gl.convert_layout(low, LAYOUT)
    sums = warpgroup_mma(a_high, b_high, sums, use_acc=use_sums, is_async=True)
    sums = warpgroup_mma(a_high, b_low, sums, is_async=True)
    return warpgroup_mma(a_low, b_high, sums, is_async=True), a_high


@gluon.jit
def rings_of(descs):
    """Return places for what chunks take, and barriers that tell when it has come."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    k_desc, q_desc, solved_desc, scores_desc, v_desc = descs
    k = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, KEYS], k_desc.layout)
    low_k = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, KEYS], k_desc.layout)
    q = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, KEYS], q_desc.layout)
    square: gl.constexpr = [STAGES, TOKENS, TOKENS]
    solved = gl.allocate_shared_memory(gl.bfloat16, square, solved_desc.layout)
    low_solved = gl.allocate_shared_memory(gl.bfloat16, square, solved_desc.layout)
    scores = gl.allocate_shared_memory(gl.bfloat16, square, scores_desc.layout)
    v = gl.allocate_shared_memory(gl.float32, [STAGES, TOKENS, ROWS], v_desc.layout)
    since = gl.allocate_shared_memory(gl.float32, [STAGES, TOKENS], FLAT)
    until = gl.allocate_shared_memory(gl.float32, [STAGES, TOKENS], FLAT)
    turned: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    results = gl.allocate_shared_memory(gl.bfloat16, [TOKENS, ROWS], turned)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(STAGES):
        mbarrier.init(bars.index(place), count=1)
    fence_async_shared()
    barrier()
    return (k, low_k, q, solved, low_solved, scores, v, since, until), results, bars


@gluon.jit
def find(state_VK, rings, slot, ACC: gl.constexpr):
    """Begin what the keys, and what the queries find in a state."""
    k, low_k, q, _solved, _low_solved, _scores, _v, _since, _until = rings
    blank_VL = gl.zeros([ROWS, TOKENS], gl.float32, ACC)
    found, high_VK = begin_product(
        state_VK, k.index(slot).permute((1, 0)), low_k.index(slot).permute((1, 0)), blank_VL,
        False, gl.DotOperandLayout(0, ACC, 2),
    )  # fmt: skip
    turned = q.index(slot).permute((1, 0))
    return found, warpgroup_mma(high_VK, turned, blank_VL, use_acc=False, is_async=True)


@gluon.jit
def replace(
    state_VK, decay, found, y, rings, slot, results, y_ptrs_LV, there_LV,
    STATE: gl.constexpr, ACC: gl.constexpr, ROWWISE: gl.constexpr,
):  # fmt: skip
    """Store a chunk's results, and return the state behind it."""
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    ALONG: gl.constexpr = gl.SliceLayout(0, ACC)
    k, low_k, _q, solved, low_solved, scores, v, since, until = rings
    blank_VL = gl.zeros([ROWS, TOKENS], gl.float32, ACC)
    since_L = since.index(slot).load(ALONG)
    v_VL = v.index(slot).permute((1, 0)).load(ACC)
    found_VL = warpgroup_mma_wait(1, deps=(found,))
    new, _wanted_VL = begin_product(
        v_VL - found_VL * since_L[None, :], solved.index(slot).permute((1, 0)),
        low_solved.index(slot).permute((1, 0)), blank_VL, False, OPERAND,
    )  # fmt: skip
    until_L = until.index(slot).load(ALONG)
    y_VL, new_VL = warpgroup_mma_wait(0, deps=(y, new))
    y = warpgroup_mma(
        gl.convert_layout(new_VL.to(gl.bfloat16), OPERAND), scores.index(slot).permute((1, 0)),
        y_VL * since_L[None, :], is_async=True,
    )  # fmt: skip
    state, _new_VL = begin_product(
        new_VL * until_L[None, :], k.index(slot), low_k.index(slot), state_VK * decay, True,
        gl.DotOperandLayout(0, STATE, 2),
    )  # fmt: skip
    # Results leave by way of shared memory, whole lines of a token at a time.
    results.permute((1, 0)).store(warpgroup_mma_wait(3, deps=(y,)).to(gl.bfloat16))
    barrier()
    gl.store(y_ptrs_LV, results.load(ROWWISE), mask=there_LV)
    return warpgroup_mma_wait(0, deps=(state,))


@gluon.jit
def take_chunks(
    state_VK, first_chunk, last, before, length, y_ptr, faded_ptr, decay_ptr, descs, begins, tokens,
    cache_ptrs_VK, table_ptr, block_stride, STATE: gl.constexpr,
    HEADS: gl.constexpr, KEY_HEADS: gl.constexpr, V: gl.constexpr, SPAN: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, SINGLE: gl.constexpr, ALL: gl.constexpr,
):  # fmt: skip
    """Return a state behind a sequence's chunks."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 16])
    _shared, _own, token, column = begins
    ROWWISE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    at_V = column + gl.arange(0, ROWS, gl.SliceLayout(0, ROWWISE))
    at_L = gl.arange(0, TOKENS, gl.SliceLayout(1, ROWWISE))
    at_LV = (at_L * (HEADS * V))[:, None] + at_V[None, :]
    rings, results, bars = rings_of(descs)
    low, first, high = span_of(first_chunk, before, length, SPAN)
    ask(rings, bars, 0, descs, faded_ptr, begins, low, first, high, tokens, HEADS, KEY_HEADS)
    decay = gl.load(decay_ptr + first_chunk * HEADS)
    for chunk in range(first_chunk, last + 1):
        slot = (chunk - first_chunk) % STAGES
        async_copy.wait_group(0)
        mbarrier.wait(bars.index(slot), (chunk - first_chunk) // STAGES & 1)
        barrier()
        if high - first < TOKENS:
            clear_chunk(rings, slot, first - low, high - low)
            fence_async_shared()
            barrier()
        found, y = find(state_VK, rings, slot, ACC)
        next_low, next_first, next_high = span_of(chunk + 1, before, length, SPAN)
        if chunk < last:
            ask(rings, bars, 1 - slot, descs, faded_ptr, begins, next_low, next_first, next_high,
                tokens, HEADS, KEY_HEADS)  # fmt: skip
        next_decay = gl.load(decay_ptr + (chunk + 1) * HEADS, mask=chunk < last, other=0.0)
        there_LV = ((low + at_L >= first) & (low + at_L < high))[:, None]
        y_ptrs_LV = y_ptr + (token + low).to(gl.int64) * (HEADS * V) + at_LV
        state_VK = replace(
            state_VK, decay, found, y, rings, slot, results, y_ptrs_LV, there_LV, STATE, ACC,
            ROWWISE,
        )  # fmt: skip
        if ALL:
            whole = (high % BLOCK_SIZE == 0) & (high < length)
            if whole:
                keep_state(
                    cache_ptrs_VK, table_ptr, high, state_VK, block_stride, BLOCK_SIZE, SINGLE
                )
        low, first, high, decay = next_low, next_first, next_high, next_decay
    return state_VK


@gluon.jit(do_not_specialize=["low", "above", "tokens"])
def carry_chunks(
    y_ptr, v_desc, k_desc, q_desc, solved_desc, scores_desc, faded_ptr, decay_ptr, cache_ptr,
    table_ptr, starts_ptr, lens_ptr, low, above, tokens, block_stride, table_stride,
    HEADS: gl.constexpr, KEY_HEADS: gl.constexpr, V: gl.constexpr, FEW: gl.constexpr,
    SPAN: gl.constexpr, BLOCK_SIZE: gl.constexpr, SINGLE: gl.constexpr, ALL: gl.constexpr,
    CHAINED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Take each sequence's state through its chunks. Grid: (rows, HEADS, V / 64).

    Args:
        v_desc, k_desc, q_desc, solved_desc, scores_desc: Tiles of 64 rows, of tokens of all parts
            and heads, and of a head's part: 64 columns of v, all of the others.
        low, above: As for the portable kernel.
    """
    PIECES: gl.constexpr = (SPAN + TOKENS - 1) // TOKENS
    STATE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    row, head = gl.program_id(0), gl.program_id(1)
    if CHAINED:
        wait()
    begin, end = gl.load(starts_ptr + row), gl.load(starts_ptr + row + 1)
    if end - begin <= FEW:
        return
    length = gl.load(lens_ptr + row)
    before, first_row = length - (end - begin), gl.program_id(2) * ROWS
    table_ptr += row.to(gl.int64) * table_stride
    at_V = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, STATE))
    at_K = gl.arange(0, KEYS, gl.SliceLayout(0, STATE))
    cache_ptrs_VK = cache_ptr + head * (V * KEYS) + at_V[:, None] * KEYS + at_K[None, :]
    first_chunk, last = chunk_at(before, SPAN, TOKENS), chunk_at(length - 1, SPAN, TOKENS)
    place = begin // (SPAN // PIECES) + SPARE * row - first_chunk
    source = gl.where(low - place > first_chunk, length, before)
    first_chunk, last = gl.maximum(first_chunk, low - place), gl.minimum(last, above - place - 1)
    if first_chunk > last:
        return
    known = gl.full([ROWS, KEYS], 1, gl.int1, STATE) & (source > 0)
    read = block_of(table_ptr, source, BLOCK_SIZE, SINGLE) * block_stride
    state_VK = gl.load(cache_ptrs_VK + read, mask=known, other=0.0).to(gl.float32)
    decay_ptr += place.to(gl.int64) * HEADS + head
    token = begin - before
    shared = head // (HEADS // KEY_HEADS) * tokens + token
    begins = (shared, head * tokens + token, token, head * V + first_row)
    state_VK = take_chunks(
        state_VK, first_chunk, last, before, length, y_ptr, faded_ptr, decay_ptr,
        (k_desc, q_desc, solved_desc, scores_desc, v_desc), begins, tokens, cache_ptrs_VK,
        table_ptr, block_stride, STATE, HEADS, KEY_HEADS, V, SPAN, BLOCK_SIZE, SINGLE, ALL,
    )  # fmt: skip
    keep_state(cache_ptrs_VK, table_ptr, length, state_VK, block_stride, BLOCK_SIZE, SINGLE)
