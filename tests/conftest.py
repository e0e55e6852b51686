"""Settings of every test process.

One thread for torch: tests run side by side, and threads that wait for each other on shared cores
make small operations fifty times slower. No deadline for hypothesis, for the same reason.
Triton's kernels are interpreted where no accelerator runs them, which must be said before Triton
is imported, by whomever.
"""

import os

import hypothesis

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.accelerator.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
hypothesis.settings.register_profile("hotshoe", deadline=None)
hypothesis.settings.load_profile("hotshoe")
