"""Settings of every test process.

One thread for torch: tests run side by side, and threads that wait for each other on shared cores
make small operations fifty times slower. No deadline for hypothesis, for the same reason.
"""

import os

import hypothesis

os.environ.setdefault("OMP_NUM_THREADS", "1")
hypothesis.settings.register_profile("hotshoe", deadline=None)
hypothesis.settings.load_profile("hotshoe")
