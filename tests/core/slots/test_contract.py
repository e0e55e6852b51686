"""What an operation lacks is found when it is built, and said of the candidate."""

from types import SimpleNamespace

import pytest

from hotshoe.slots import PLAIN_LAYOUT, SLOTS
from hotshoe.slots.contract import shortcoming


class Reading:
    """An operation of attention, whose parts a test replaces."""

    def __init__(self, **parts: object) -> None:
        self.layout, self.prepare = PLAIN_LAYOUT, len
        vars(self).update(parts)

    def __call__(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (Reading(), ""),
        (None, "build() returned None, not an operation"),
        (SimpleNamespace(layout=PLAIN_LAYOUT), "its operation, of type SimpleNamespace, cannot be"),
        (len, "its operation has no layout and no prepare"),
        (Reading(layout="thd"), "its operation's layout is of type str, not a KVLayout"),
        (Reading(prepare=None), "its operation's prepare is of type NoneType, not a method"),
    ],
)
def test_what_is_short_of_the_contract(operation: object, said: str) -> None:
    found = shortcoming(SLOTS["attention"], operation)
    assert found.startswith(said)
    assert bool(found) == bool(said)
