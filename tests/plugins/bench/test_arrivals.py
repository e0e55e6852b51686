"""Arrival times have the rate and the burstiness that was asked for."""

import random
import statistics
from itertools import pairwise

import pytest

from hotshoe_bench.arrivals import arrival_times


def gaps(rate: float, burstiness: float) -> list[float]:
    times = arrival_times(20_001, rate, burstiness, random.Random(0))
    return [b - a for a, b in pairwise(times)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("rate", [0.5, 200.0])
def test_mean_and_spread_are_those_of_the_gamma_distribution(
    rate: float, burstiness: float
) -> None:
    drawn = gaps(rate, burstiness)
    assert statistics.fmean(drawn) == pytest.approx(1 / rate, rel=0.06)
    variation = statistics.stdev(drawn) / statistics.fmean(drawn)
    assert variation == pytest.approx(burstiness**-0.5, rel=0.08)


def test_arrivals_are_in_order_and_begin_at_once() -> None:
    times = arrival_times(100, 5.0, 1.0, random.Random(1))
    assert times[0] == 0
    assert times == sorted(times)


def test_without_a_rate_all_arrive_together() -> None:
    assert arrival_times(3, None, 1.0, random.Random(0)) == [0.0, 0.0, 0.0]
