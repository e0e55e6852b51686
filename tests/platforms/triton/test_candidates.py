"""The table that platforms share: names of their own, the rest alike."""

from pathlib import Path

import pytest
from tests.platforms.triton.conftest import device_facts

from hotshoe.slots import SLOTS, Selector
from hotshoe_triton import library
from hotshoe_triton.candidates import shared


class Linear(library.Linear):
    """A platform's own."""

    folder = Path("nowhere")


def test_a_platform_names_what_its_vendor_calls_otherwise() -> None:
    offered = {(c.slot, c.name): c for c in shared("recording", "sums", Linear)}
    assert ("graph", "recording") in offered
    assert ("communicator", "sums") in offered
    assert offered["linear", "streaming"].build is Linear


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_every_slot_is_served_and_names_do_not_clash(arch: str) -> None:
    offered = shared("graph", "nccl", Linear)
    asked = {n for n, slot in SLOTS.items() if not slot.composed_of}
    assert {c.slot for c in offered} == asked
    Selector(SLOTS, offered, device_facts(arch))
