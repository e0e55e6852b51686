"""Keys and values as products of `decode` take them: of 16 bits as they lie in shared memory, of 8
bits widened to float16 in registers.

Float16 holds every number of the three 8-bit types exactly, and one or two instructions make two of
it. A thread takes the bytes of neighboring channels at once. Products want other keys and channels
of it than it then has, but any order of keys and channels will do, if weights, queries and results
have the same. So they are renumbered, which moves nothing.

Shape suffixes: W warps, N keys of a warp's tile, D channels.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def products(warps):
    """Return the layout of sums: each warp has its own."""
    return gl.NVMMADistributedLayout([2, 0], [warps, 1, 1], [1, 16, 8])


@gluon.constexpr_function
def powers(first, last):
    """Return the powers of two from one to before another."""
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return found


@gluon.constexpr_function
def key_bytes(warps, keys, dim):
    """Return how a thread takes keys of 8 bits: a quarter of the channels of every eighth key."""
    regs = [[0, 0, d] for d in powers(1, dim // 4)] + [[0, n, 0] for n in powers(8, keys)]
    lanes = [[0, 0, dim // 4], [0, 0, dim // 2], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(
        regs, lanes, [[w, 0, 0] for w in powers(1, warps)], [], [warps, keys, dim]
    )


@gluon.constexpr_function
def value_bytes(warps, keys, dim):
    """Return how a thread takes values of 8 bits: an eighth of the channels of pairs of keys."""
    regs = [[0, 0, d] for d in powers(1, dim // 8)] + [[0, 1, 0]]
    regs += [[0, n, 0] for n in powers(8, keys)]
    lanes = [[0, 2, 0], [0, 4, 0], [0, 0, dim // 8], [0, 0, dim // 4], [0, 0, dim // 2]]
    return gl.DistributedLinearLayout(
        regs, lanes, [[w, 0, 0] for w in powers(1, warps)], [], [warps, keys, dim]
    )


@gluon.constexpr_function
def widening(dtype, paired):
    """Return the assembly that makes four float16 of each of one word or, for pairs, of two."""
    kind, lines = str(dtype), []
    if paired:
        lines += ["prmt.b32 a, $4, $5, 0x5140;", "prmt.b32 b, $4, $5, 0x7362;"]
        words, outs = ["a", "b"], ["$0", "$1", "$2", "$3"]
    else:
        lines += ["mov.b32 a, $2;"]
        words, outs = ["a"], ["$0", "$1"]
    for i, word in enumerate(words):
        low, high = outs[2 * i], outs[2 * i + 1]
        if kind == "int8":
            lines += [
                f"xor.b32 {word}, {word}, 0x80808080;",
                f"prmt.b32 {low}, {word}, 0x64646464, 0x4140;",
                f"prmt.b32 {high}, {word}, 0x64646464, 0x4342;",
                f"sub.f16x2 {low}, {low}, c;",
                f"sub.f16x2 {high}, {high}, c;",
            ]
        elif kind == "fp8e5":
            lines += [
                f"prmt.b32 {low}, {word}, 0, 0x1404;",
                f"prmt.b32 {high}, {word}, 0, 0x3424;",
            ]
        else:
            lines += [
                f"mov.b32 {{l, h}}, {word};",
                f"cvt.rn.f16x2.e4m3x2 {low}, l;",
                f"cvt.rn.f16x2.e4m3x2 {high}, h;",
            ]
    return "{ .reg .b32 a, b, c; .reg .b16 l, h; mov.b32 c, 0x64806480; " + " ".join(lines) + " }"


@gluon.jit
def keys_at(ring, slot, MMA: gl.constexpr):
    """Return a tile of keys as the first factor of scores [W, N, D]; of 8 bits with channels in
    another order, see `channel_of`."""
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    W: gl.constexpr = ring.shape[1]
    KEYS: gl.constexpr = ring.shape[2]
    BLOCK_D: gl.constexpr = ring.shape[3]
    if ring.dtype.primitive_bitwidth == 16:
        k_WND = ring.index(slot).load(A)
    else:
        k_WND = ring.index(slot).load(key_bytes(W, KEYS, BLOCK_D))
        WIDEN: gl.constexpr = widening(ring.dtype, False)
        k_WND = gl.inline_asm_elementwise(WIDEN, "=r,=r,r", [k_WND], gl.float16, True, 4)
        k_WND = k_WND.reshape([W, KEYS, 4, BLOCK_D // 16, 2, 2]).permute((0, 1, 3, 4, 2, 5))
        k_WND = gl.convert_layout(k_WND.reshape([W, KEYS, BLOCK_D]), A, assert_trivial=True)
    return k_WND


@gluon.jit
def channel_of(index_D, BLOCK_D: gl.constexpr, NARROW: gl.constexpr):
    """Return which channel of a key is multiplied with a query's so many-th."""
    if NARROW:
        quarter = index_D % 8 // 2 * (BLOCK_D // 4)
        index_D = quarter + index_D // 16 * 4 + index_D % 16 // 8 * 2 + index_D % 2
    return index_D


@gluon.jit
def values_at(ring, slot, MMA: gl.constexpr):
    """Return a tile of values as the first factor of results [W, D, N]; of 8 bits with channels in
    another order, see `in_order`."""
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    W: gl.constexpr = ring.shape[1]
    KEYS: gl.constexpr = ring.shape[2]
    BLOCK_D: gl.constexpr = ring.shape[3]
    if ring.dtype.primitive_bitwidth == 16:
        v_WDN = ring.index(slot).permute((0, 2, 1)).load(A)
    else:
        v_WND = ring.index(slot).load(value_bytes(W, KEYS, BLOCK_D))
        v_WND = v_WND.reshape([W, KEYS // 2, 2, BLOCK_D]).permute((0, 1, 3, 2))
        even_WND, odd_WND = gl.split(v_WND)
        WIDEN: gl.constexpr = widening(ring.dtype, True)
        # Pairs of keys come: of four channels, `even` has the first two, and `odd` the others.
        even_WND, odd_WND = gl.inline_asm_elementwise(
            WIDEN, "=r,=r,=r,=r,r,r", [even_WND, odd_WND], (gl.float16, gl.float16), True, 4
        )
        v_WND = gl.join(even_WND, odd_WND)
        v_WND = v_WND.reshape([W, KEYS // 2, BLOCK_D // 4, 2, 2, 2]).permute((0, 1, 4, 2, 5, 3))
        v_WND = v_WND.reshape([W, KEYS, 8, BLOCK_D // 8]).permute((0, 3, 2, 1))
        v_WDN = gl.convert_layout(v_WND.reshape([W, BLOCK_D, KEYS]), A, assert_trivial=True)
    return v_WDN


@gluon.jit
def in_order(x_WGD, NARROW: gl.constexpr):
    """Return half of the results, in the order of their channels."""
    if NARROW:
        W: gl.constexpr = x_WGD.shape[0]
        HEADS: gl.constexpr = x_WGD.shape[1]
        WIDTH: gl.constexpr = x_WGD.shape[2]
        x_WGD = x_WGD.reshape([W, HEADS, WIDTH // 8, 8]).permute((0, 1, 3, 2))
        x_WGD = x_WGD.reshape([W, HEADS, WIDTH])
    return x_WGD


@gluon.jit
def joined(low_GD, high_GD, NARROW: gl.constexpr):
    """Return both halves of results as one, with channels in order."""
    HEADS: gl.constexpr = low_GD.shape[0]
    WIDTH: gl.constexpr = low_GD.shape[1]
    PLACES: gl.constexpr = 8 if NARROW else 1
    both_GD = gl.join(low_GD, high_GD).reshape([HEADS, PLACES, WIDTH // PLACES, 2])
    return both_GD.permute((0, 1, 3, 2)).reshape([HEADS, 2 * WIDTH])


@gluon.jit
def turned(x_WNG, MMA: gl.constexpr):
    """Return 16-bit weights, as sums of products have them, as the second factor of products.

    The instruction turns 8 keys and 8 heads over, which lie in all threads of a warp.
    """
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    W: gl.constexpr = x_WNG.shape[0]
    KEYS: gl.constexpr = x_WNG.shape[1]
    HEADS: gl.constexpr = x_WNG.shape[2]
    x_WNG = gl.inline_asm_elementwise(
        "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "=r,r", [x_WNG], x_WNG.dtype, False, 2
    )
    x_WNG = x_WNG.reshape([W, KEYS // 8, 8, HEADS // 8, 8]).permute((0, 1, 4, 3, 2))
    return gl.convert_layout(x_WNG.reshape([W, KEYS, HEADS]), B, assert_trivial=True)
