"""Lets a kernel begin while the one before it ends, so that small kernels in a row leave no gaps.

With CHAINED every program lets the next kernel be launched, then waits for all the previous
kernel's results. Whatever a kernel does before `wait` may touch nothing that kernels of the chain
write, and every program must wait: a kernel's end then means that all before it have ended too. A
chain begins behind the last kernel that is not part of it, PyTorch's for example, which has ended.
Source: CUDA C++ Programming Guide, programmatic dependent launch.
"""

import triton
import triton.language as tl


@triton.jit
def wait(CHAINED: tl.constexpr):
    """Go on once everything that earlier kernels wrote is visible."""
    # Written out, because Triton's builds for other vendors lack its module of these.
    if CHAINED:
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], tl.int32, is_pure=False, pack=1
        )
        tl.inline_asm_elementwise(
            "griddepcontrol.wait; // $0", "=r", [], tl.int32, is_pure=False, pack=1
        )


@triton.jit
def ask_for(ptrs, CHAINED: tl.constexpr):
    """Bring lines of memory, one for each pointer, nearer while earlier kernels still run."""
    if CHAINED:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; // $0", "=r,l", [ptrs.to(tl.int64)], tl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip
