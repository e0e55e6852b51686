"""Reference of slot `graph`: records nothing, and runs the function each time.

It runs it at once, too, as candidates do that compile while they record.
"""

from collections.abc import Callable

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import Between
from hotshoe.slots.specs import GraphSpec


class Graph:
    """See `hotshoe.slots.GraphOp`."""

    def __init__(self, spec: GraphSpec, facts: DeviceFacts) -> None:
        pass

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return self.record_pieces(lambda between: function())

    def record_pieces(self, function: Callable[[Between], Tensor]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            return function(lambda call: call())

        run()
        return run
