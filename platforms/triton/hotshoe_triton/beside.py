"""A second queue of a device, whose kernels run beside those of the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from hotshoe.platform import DeviceFacts


class Beside:
    """Launches kernels behind all that was launched before, and beside all that is launched next.

    They go first where multiprocessors have room: few programs that take long. A recording that is
    made meanwhile takes both queues. What the kernels read and write must live until the first
    queue has waited for them.
    """

    def __init__(self, facts: DeviceFacts) -> None:
        self._device = facts.device

    @cached_property
    def _queue(self) -> Any:
        return torch.get_device_module(self._device).Stream(priority=-1)

    def __call__(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Launch, and return a call that makes the first queue wait for the end."""
        module, queue = torch.get_device_module(self._device), self._queue
        queue.wait_stream(module.current_stream())
        with module.stream(queue):
            launch()
            end = queue.record_event()
        return lambda: module.current_stream().wait_event(end)
