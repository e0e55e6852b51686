"""Texts compared by vectors of tokens."""

import numpy as np
import pytest

from hotshoe.models.late import max_sim
from hotshoe.types.late import LateInteraction


def test_each_vector_of_a_query_takes_its_best() -> None:
    rng = np.random.default_rng()
    query, document = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    wanted = sum(max(float(q @ d) for d in document) for q in query)
    assert max_sim(query, document, [1, 2, 3, 4, 5], LateInteraction()) == pytest.approx(wanted)


def test_skipped_tokens_do_not_count_unless_there_is_nothing_else() -> None:
    late = LateInteraction(skipped=(9,))
    query, document = np.eye(2), np.array([[5.0, 5.0], [1.0, 0.0]])
    assert max_sim(query, document, [9, 3], late) == 1.0
    assert max_sim(query, document, [9, 9], late) == 10.0


def test_markers_and_masks() -> None:
    late = LateInteraction(query=7, document=8, query_length=6, mask=5)
    assert late.of_query([1, 30, 2]) == [1, 7, 30, 2, 5, 5]
    assert late.of_query([1, *range(30, 38), 2]) == [1, 7, *range(30, 38), 2]
    assert late.of_document([1, 30, 2]) == [1, 8, 30, 2]
    assert LateInteraction().of_query([1, 2]) == LateInteraction().of_document([1, 2]) == [1, 2]
