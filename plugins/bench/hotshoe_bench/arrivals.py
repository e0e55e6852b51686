"""When requests of an open load are sent."""

import random


def arrival_times(
    count: int, rate: float | None, burstiness: float, rng: random.Random
) -> list[float]:
    """Draw the seconds after the start at which requests are sent, in order.

    Gaps follow a gamma distribution of mean 1 / rate, whose shape is the burstiness: 1 is a
    Poisson process, less comes in bursts, more is steadier.

    Args:
        count: Number of requests.
        rate: Requests per second; None sends all at once.
        burstiness: Shape of the gamma distribution, above 0.
        rng: Where randomness comes from.
    """
    if rate is None:
        return [0.0] * count
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
    return times
