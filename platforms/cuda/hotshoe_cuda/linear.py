"""Candidate `streaming` of slot `linear`, with what was tuned on NVIDIA's GPUs."""

from pathlib import Path

from hotshoe_triton import library


class Linear(library.Linear):
    """See `hotshoe.slots.LinearOp`; the library is cuBLAS or CUTLASS."""

    folder = Path(__file__).parent / "tuned"
