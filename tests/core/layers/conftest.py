"""A build context on plain references, and a selector that records what layers ask for."""

import pytest

from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.fixture
def ctx():
    return BuildContext(Selector(SLOTS, [], FACTS), "float32", "float32", 4, 32)
