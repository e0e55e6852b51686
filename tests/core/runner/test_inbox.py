"""Arrays arrive whole, at addresses that depend on their shapes alone."""

import numpy as np
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.runner.inbox import Inbox
from hotshoe.slots import TransferSpec
from hotshoe.slots.reference.transfer import Transfer

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


class LateTransfer(Transfer):
    """Copies only when told to, as a busy device does."""

    def __init__(self) -> None:
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def upload(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.pending.append((source, target))

    def work(self) -> None:
        source, target = self.pending.pop(0)
        target.copy_(source)


def test_arrays_arrive_with_their_types() -> None:
    inbox = Inbox(Transfer(TransferSpec(1), FACTS), "cpu", 256, 1)
    arrays = [np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int64) - 9, np.zeros(0, np.int32)]
    views, in_place = inbox.stage(arrays)
    assert in_place
    assert [v.tolist() for v in views] == [a.tolist() for a in arrays]
    again, _ = inbox.stage([a + 1 for a in arrays])
    assert [v.data_ptr() for v in again[:2]] == [v.data_ptr() for v in views[:2]]


def test_a_large_step_gets_memory_of_its_own() -> None:
    inbox = Inbox(Transfer(TransferSpec(1), FACTS), "cpu", 64, 1)
    large = np.arange(1000, dtype=np.int64)
    (view,), in_place = inbox.stage([large])
    assert not in_place
    assert view.tolist() == large.tolist()
    (view,), in_place = inbox.stage([large[:4]])
    assert in_place
    assert view.tolist() == [0, 1, 2, 3]


def test_host_memory_is_not_reused_while_steps_are_in_flight() -> None:
    transfer = LateTransfer()
    inbox = Inbox(transfer, "cpu", 64, max_steps_in_flight=2)
    (view,), _ = inbox.stage([np.full(4, 1, np.int32)])
    inbox.stage([np.full(4, 2, np.int32)])
    inbox.stage([np.full(4, 3, np.int32)])  # the first step has been read by then
    transfer.work()
    assert view.tolist() == [1] * 4
    transfer.work()
    assert view.tolist() == [2] * 4
