"""`hotshoe tune cuda`."""

from functools import partial

from hotshoe_cuda.linear import Linear
from hotshoe_triton import tune

Tune = partial(tune.Tune, "cuda", Linear)
