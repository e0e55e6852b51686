"""Upper bounds of histograms, without infinity: Hotshoe's, vLLM's, and those of HTTP."""

from __future__ import annotations

from hotshoe.engine.client import STEP_SIZES

SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0),
)
TOKENS = tuple(float(2**power) for power in range(19))
COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
#: vLLM's, for dashboards that name them.
VLLM_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
VLLM_GAPS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
VLLM_SPANS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
VLLM_TOKENS = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))
VLLM_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0)
STEP_TOKENS = tuple(map(float, STEP_SIZES))
#: Of those who instrument FastAPI, as vLLM does: few for each route, many for all together.
HTTP_FEW = (0.1, 0.5, 1.0)
HTTP_MANY = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0),
    *(7.5, 10.0, 30.0, 60.0),
)
