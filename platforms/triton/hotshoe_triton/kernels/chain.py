"""Lets a kernel begin while the one before it ends, so that small kernels in a row leave no gaps.

With CHAINED every program lets the next kernel be launched, then waits for all the previous
kernel's results. Whatever a kernel does before `wait` may touch nothing that other kernels write.
Source: CUDA C++ Programming Guide, programmatic dependent launch.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait(CHAINED: tl.constexpr):
    """Go on once everything that earlier kernels wrote is visible."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
