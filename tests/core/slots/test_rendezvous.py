"""What ranks that meet share."""

import pytest

from hotshoe.slots import even_sizes


def test_rows_are_cut_into_equal_pieces() -> None:
    assert even_sizes(6, 3) == [2, 2, 2]
    with pytest.raises(ValueError, match="7 rows do not divide among 3 ranks; give sizes"):
        even_sizes(7, 3)
