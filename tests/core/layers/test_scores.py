"""Small products in float32, with adapters that have factors or a whole matrix."""

from dataclasses import replace

import numpy as np
import torch

from hotshoe.layers import AdapterLimits, AdapterTable, BuildContext, Changes, Scores
from hotshoe.layers.adapters import Factors


def test_adapters_change_scores(ctx: BuildContext) -> None:
    table = AdapterTable(AdapterLimits(2, 3))
    own = replace(ctx, adapters=table, cache_layers=[], weight_bytes=[])
    scores, weight = Scores(own, "gate", 5, 8), torch.randn(5, 8)
    own.weights.feed("gate.weight", weight)
    a, b, whole = torch.randn(2, 8), torch.randn(5, 2), torch.randn(5, 8)
    table.load("low", table.own({"gate": Factors(a, b, scale=0.5)}))
    empty = torch.empty(0, 0)
    table.load("whole", table.own({"gate": Factors(empty, empty, whole=whole)}))
    x = torch.randn(3, 8)
    begun = table.begin(["low", None, "whole"], [1, 1, 1], np.arange(3))
    assert begun == Changes.APART
    y = scores(x)
    assert y.dtype == torch.float32
    for row, matrix in zip(range(3), (weight + 0.5 * b @ a, weight, whole), strict=True):
        torch.testing.assert_close(y[row], matrix @ x[row])
