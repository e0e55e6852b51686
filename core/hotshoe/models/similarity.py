"""How close two vectors are. A larger number is closer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotshoe.types.instructions import Similarity

Vector = npt.NDArray[np.float64]


def _cosine(a: Vector, b: Vector) -> float:
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return min(1.0, max(-1.0, float(a @ b) / length)) if length else 0.0


_FUNCTIONS: Mapping[Similarity, Callable[[Vector, Vector], Any]] = {
    "cosine": _cosine,
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.linalg.norm(a - b),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}


def similarity(name: Similarity, one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Compare two vectors [size]: by the cosine of their angle (0 where one has no length), their
    product, or their distance below 0."""
    return float(_FUNCTIONS[name](np.asarray(one, np.float64), np.asarray(other, np.float64)))
