"""The reference communicator's own: messages of its errors, and sums in a wider type.

What all communicators promise is tested by the conformance kit.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hotshoe.errors import EngineError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import CommunicatorSpec, Rendezvous
from hotshoe.slots.reference.communicator import Communicator, row_bytes

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.fixture
def pair(tmp_path):
    """Run a function on both ranks."""
    members = [Communicator(CommunicatorSpec(2), FACTS) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:

        def run(work):
            return list(pool.map(work, range(2), members))

        run(lambda rank, member: member.open(Rendezvous(str(tmp_path), rank, 2, 60.0)))
        yield run
        for member in members:
            member.close()
            member.close()


def test_sums_of_short_floats_are_rounded_once(pair):
    """256 + 1 + ... in bfloat16 would stay 256; two ranks bring 1.5 and 257.5."""
    x = [torch.tensor([1.0078125, 257.0]).bfloat16(), torch.tensor([2.0**-9, 0.5]).bfloat16()]
    expected = (x[0].float() + x[1].float()).bfloat16()
    for found in pair(lambda rank, member: member.all_reduce(x[rank])):
        assert torch.equal(found, expected)


def test_inputs_need_not_be_kept_as_they_were(pair):
    """Staged copies are its own: what was given may change at once."""

    def work(rank, member):
        x = torch.full((4,), float(rank))
        found = member.all_gather(x)
        x.fill_(9)
        return found

    for found in pair(work):
        assert found.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_errors_say_who_lost_whom_and_no_more(pair):
    def work(rank, member):
        if rank == 0:
            member.close()
            return "rank 1 lost the other ranks: "
        with pytest.raises(EngineError) as caught:
            member.broadcast(torch.zeros(3), 0)
        return str(caught.value)

    prefix, message = pair(work)
    assert message.startswith(prefix) and "[" not in message and "\n" not in message


def test_row_bytes():
    assert row_bytes(torch.zeros(0, 3, 2, dtype=torch.bfloat16)) == 12
    assert row_bytes(torch.zeros(5)) == 4
