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


def test_replays_that_are_none(finds) -> None:
    assert finds("graph", Frozen)
    assert finds("graph", Latest)


class CalledOnce(Graph):
    """Calls between pieces as they were when it recorded."""

    def record_pieces(self, function):
        called = []

        def between(call) -> None:
            if not called:
                call()
            called.append(call)

        return lambda: function(between)


class CalledLast(Graph):
    """Repeats all pieces, then calls."""

    def record_pieces(self, function):
        def replay():
            calls = []
            output = function(calls.append)
            for call in calls:
                call()
            return output

        return replay


class LatestPieces(Graph):
    """Replays the pieces that were recorded last."""

    def record_pieces(self, function):
        self.function = function
        return lambda: self.function(lambda call: call())


def test_pieces_that_are_none(finds) -> None:
    for graph in (CalledOnce, CalledLast, LatestPieces):
        assert finds("graph", graph), graph
