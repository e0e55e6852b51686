"""The cases of embedding find a scale that is forgotten and rows that are others."""

from hotshoe.slots.reference.embedding import build


def test_the_reference_passes(defects) -> None:
    assert defects("embedding", build) == []


def test_a_scale_that_is_overlooked(finds, blind) -> None:
    assert finds("embedding", blind("embedding", scale=1.0))


def test_rows_that_are_others(finds, wrapped) -> None:
    def before(op, spec, ids, table):
        return op((ids - 1).clamp(min=0), table)

    assert finds("embedding", wrapped("embedding", before))
