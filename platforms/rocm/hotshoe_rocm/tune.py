"""`hotshoe tune rocm`."""

from functools import partial

from hotshoe_rocm.linear import Linear
from hotshoe_triton import tune

Tune = partial(tune.Tune, "rocm", Linear)
