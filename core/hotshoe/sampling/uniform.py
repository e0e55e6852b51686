"""Random numbers that depend on nothing but a request's seed and the position they decide.

No generator state exists, so tokens are the same whatever runs beside a request, after a
preemption, and when steps overlap. Called by the sampler once per step for its random rows.
"""

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
_DROPPED_BITS = np.uint64(11)  # 64 - 53: a float64 holds 53


def uniforms(seeds: UInt64s, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) for every (seed, position); both [n].

    Source: SplitMix64, Steele, Lea and Flood 2014, doi:10.1145/2714064.2660195; its stream is
    entered at a place that is itself a mix of the seed, so that near seeds share nothing.
    """
    steps = (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA
    bits = mix(mix(seeds + _GAMMA) + steps)
    return (bits >> _DROPPED_BITS).astype(np.float64) * 2.0**-53


def mix(x: UInt64s) -> UInt64s:
    """Scramble 64-bit words, one to one."""
    for shift, factor in _ROUNDS:
        x = (x ^ (x >> shift)) * factor
    return x ^ (x >> _LAST_SHIFT)
