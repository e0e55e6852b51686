"""The names that adapters have for matrices, and those that layers know.

Modules of transformers may have other names than a model's files, and the part that makes text has
another prefix where a model also sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotshoe.layers.weights import WeightTable

if TYPE_CHECKING:
    from hotshoe.layers.adapters import Factors

#: In front of the names of layers that make text.
_TEXT = re.compile(r"^((model|language_model|text_model|backbone)\.)+")
#: A matrix of modules that many files have in halves.
_BOTH, _HALVES = "gate_up_proj", ("gate_proj", "up_proj")


class MatrixNames:
    """What layers call the matrices of adapters.

    Args:
        weights: Of the model.
        names: Matrices that adapters may change.
    """

    def __init__(self, weights: WeightTable, names: Iterable[str]) -> None:
        self._weights, self._names = weights, frozenset(names)
        self._by_end: dict[str, str] = {}
        self._prefixes: set[str] = set()

    def known(self, matrix: str) -> str:
        """Return the name of a layer's matrix, here or on another rank, or the same name where
        there is none.

        Files are renamed first, as they are read: a model may leave layers out and count anew.
        """
        plain = f"model.{_bare(matrix)}"
        found = [
            self._weights.known_as(f"{name}.weight").removesuffix(".weight")
            for name in (matrix, plain)
        ]
        for name in found:
            if name in self._names:
                return name
        if not self._by_end:
            self._by_end = {_bare(name): name for name in self._names}
            self._prefixes = {name.removesuffix(end) for end, name in self._by_end.items()}
        end = _bare(found[1])
        others = (*found, *(prefix + end for prefix in self._prefixes))
        elsewhere = filter(self._is_elsewhere, others)
        return self._by_end.get(end) or next(elsewhere, matrix)

    def placed(self, matrix: str, pair: Factors) -> Iterator[tuple[str, Factors]]:
        """Yield a matrix by the name that layers know, or its halves where layers have these."""
        name = self.known(matrix)
        if matrix.endswith(_BOTH) and name == matrix and name not in self._names:
            parts = [self.known(matrix.removesuffix(_BOTH) + half) for half in _HALVES]
            if all(part in self._names or self._is_elsewhere(part) for part in parts):
                for number, part in enumerate(parts):
                    yield part, _half(pair, number)
                return
        yield name, pair

    def _is_elsewhere(self, name: str) -> bool:
        return self._weights.is_elsewhere(f"{name}.weight")

    def why_not(self, matrix: str) -> str:
        """Say, behind "which", why adapters may not change a matrix."""
        wanted = _bare(f"{matrix}.weight")
        for name, expected in self._weights.expected.items():
            if _bare(name) == wanted and len(expected.shape) == 2:
                return "an operation multiplies by amid others"
        return "is no layer of this model that takes adapters"


def _half(pair: Factors, number: int) -> Factors:
    """Return the first or the second half of a matrix's rows."""
    rows = len(pair.b if pair.whole is None else pair.whole) // 2
    at = slice(number * rows, None if number else rows)
    magnitude, whole = (None if x is None else x[at] for x in (pair.magnitude, pair.whole))
    return pair._replace(b=pair.b[at], magnitude=magnitude, whole=whole)


def _bare(name: str) -> str:
    return _TEXT.sub("", name)
