"""What is left of a GPU's memory for the KV cache, asked after a step of the largest size has run.

The device is the current one of PyTorch's module for it, which has the same functions for every
vendor.
"""

from types import ModuleType

from hotshoe.platform import MemoryBudget


def start(module: ModuleType) -> None:
    """Forget the peak of engines before this one in the process."""
    module.reset_peak_memory_stats()


def budget(module: ModuleType, memory_fraction: float) -> MemoryBudget:
    """Leave what the largest step needed beside the weights, and what others took."""
    peak = module.memory_stats()["allocated_bytes.all.peak"]
    module.empty_cache()
    free, total = module.mem_get_info()
    # What is reserved and still not free after this lies between recordings or is in pieces.
    others = max(total - free - module.memory_allocated(), 0)
    allowed = int(total * memory_fraction) - others - peak
    note = (
        f"{memory_fraction:.0%} of {total / 2**30:.1f} GiB, less "
        f"{peak / 2**30:.1f} GiB for weights and the largest step and "
        f"{others / 2**30:.1f} GiB taken otherwise"
    )
    return MemoryBudget(max(allowed, 0), note)
