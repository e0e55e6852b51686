"""The cases of graph find replays that do not read what is there, or mix recordings up."""

from hotshoe.slots.reference.graph import Graph


def test_the_reference_passes(defects) -> None:
    assert defects("graph", Graph) == []


class Frozen(Graph):
    """Replays the result of the recording."""

    def record(self, function):
        result = function()
        return lambda: result


class Latest(Graph):
    """Replays whatever was recorded last."""

    def record(self, function):
        self.function = function
        return lambda: self.function()  # noqa: PLW0108  # whatever it is by then


def test_replays_that_are_none(defects) -> None:
    assert defects("graph", Frozen)
    assert defects("graph", Latest)
