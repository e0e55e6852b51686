"""Compares texts by the vectors of all their tokens.

Source: Khattab and Zaharia 2020, "ColBERT", arXiv:2004.12832.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hotshoe.types.late import LateInteraction


def max_sim(
    query: npt.ArrayLike,
    document: npt.ArrayLike,
    ids: Sequence[int],
    late: LateInteraction,
) -> float:
    """Return the sum over a query's vectors of the largest product with one of a document's.

    Args:
        query: [n, size].
        document: [m, size].
        ids: [m] tokens of the document.
        late: Says which of these do not count; if none is left, all do.
    """
    ours, theirs = np.asarray(query, np.float32), np.asarray(document, np.float32)
    counts = ~np.isin(ids, late.skipped)
    kept = theirs[counts] if counts.any() else theirs
    return float((ours @ kept.T).max(1).sum())
