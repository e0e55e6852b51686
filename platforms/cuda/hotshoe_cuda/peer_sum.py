"""Adds up one tensor of every rank in one kernel, over memory that GPUs write of each other.

A program writes its piece into every other rank's memory, tells the same program there, waits for
theirs, and adds up all ranks' pieces. Sums are in float32 and in the order of ranks, so every rank
gets the same bits. Two halves of the memory take turns: who may write a half again has heard of the
round between, and the others said that after they had read. So one exchange is enough, and nobody
waits for a read of another GPU's memory.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait


@triton.jit
def sum_over_ranks(
    out_ptr, x_ptr, memories_ptr, rounds_ptr, numel, max_looks,
    RANK: tl.constexpr, SIZE: tl.constexpr, DATA_AT: tl.constexpr, SLOT_BYTES: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: always the same number of programs, fewer than a device runs at once.

    memories: [SIZE] int64 addresses; at first a round's number, int32, for each rank and program,
    from DATA_AT on the halves, each with a slot for every rank. rounds: [programs] int32. out may
    be x. A program that has looked max_looks times for another rank ends itself, and with it
    everything that the process computes.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    numbers = tl.pointer_type(tl.int32)
    values = tl.pointer_type(x_ptr.dtype.element_ty)
    at = tl.arange(0, BLOCK)
    wait(CHAINED)
    this = tl.load(rounds_ptr + program) + 1
    half_at = DATA_AT + (this & 1) * (SIZE * SLOT_BYTES)
    own = tl.load(memories_ptr + RANK)
    for begin in range(program * BLOCK, numel, programs * BLOCK):
        there = begin + at < numel
        x = tl.load(x_ptr + begin + at, mask=there)
        for step in tl.static_range(1, SIZE):
            memory = tl.load(memories_ptr + (RANK + step) % SIZE)
            slot = tl.multiple_of((memory + half_at + RANK * SLOT_BYTES).to(values), 16)
            tl.store(slot + begin + at, x, mask=there)
    tl.debug_barrier()
    for step in tl.static_range(1, SIZE):
        memory = tl.load(memories_ptr + (RANK + step) % SIZE).to(numbers)
        number = memory + RANK * programs + program
        tl.atomic_xchg(number, this, sem="release", scope="sys")
    for step in tl.static_range(1, SIZE):
        number = own.to(numbers) + (RANK + step) % SIZE * programs + program
        looks = 0
        while tl.atomic_add(number, 0, sem="acquire", scope="sys") - this < 0:
            looks += 1
            if looks > max_looks:
                tl.inline_asm_elementwise("trap; // $0", "=r", [], tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()
    for begin in range(program * BLOCK, numel, programs * BLOCK):
        there = begin + at < numel
        total = tl.zeros((BLOCK,), tl.float32)
        for rank in tl.static_range(SIZE):
            slot = tl.multiple_of((own + half_at + rank * SLOT_BYTES).to(values), 16)
            if rank == RANK:
                part = tl.load(x_ptr + begin + at, mask=there)
            else:
                part = tl.load(slot + begin + at, mask=there, cache_modifier=".cg")
            total += part.to(tl.float32)
        tl.store(out_ptr + begin + at, total.to(x_ptr.dtype.element_ty), mask=there)
    tl.store(rounds_ptr + program, this)
