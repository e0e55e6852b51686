"""What of a worker rests while its engine sleeps, and what is as it was when the engine wakes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from hotshoe.errors import MemoryLimitError, RequestError
from hotshoe.layers.cache import CacheLayer, free_caches, memory_of
from hotshoe.layers.device_memory import DeviceMemory
from hotshoe.layers.host_memory import RestingPlace

if TYPE_CHECKING:
    from hotshoe.runner.running import Steps
    from hotshoe.slots import TransferOp

_log = logging.getLogger(__name__)


class Resting:
    """Weights, caches, and the steps over both.

    Steps that were recorded outlast a sleep if all memory comes back at its addresses. That is so
    from the second sleep on, or from the first one that was prepared: memory moves to addresses
    that stay when an engine wakes.

    Args:
        transfer: Copies weights, and may reserve addresses.
        changing: Weights change unasked.

    Attributes:
        weights: Their copies on the host.
    """

    def __init__(self, transfer: TransferOp, changing: bool) -> None:
        self._transfer = transfer
        self.weights = RestingPlace(transfer, changing)
        self._caches = DeviceMemory(transfer)
        self._steps: Steps | None = None

    @property
    def asleep(self) -> bool:
        """Whether the weights are on the host alone."""
        return self.weights.memory.gone

    def settle(self, layers: Sequence[CacheLayer]) -> None:
        """Let caches that were just allocated lie at addresses that stay, if the weights do.

        Raises:
            RuntimeError: There is too little memory.
        """
        if self.weights.memory.settled:
            self._caches = DeviceMemory(self._transfer)
            self._caches.hold(memory_of(layers))
            self._caches.give_up()
            self._take_caches()

    def prepare(
        self, weights: Callable[[], Sequence[torch.UntypedStorage]], release: Callable[[], object]
    ) -> None:
        """Copy weights to the host, and let them lie at addresses that stay, before anything is
        recorded: what else the first sleep and the first wake would do.

        Args:
            weights: Returns all that lies on the device.
            release: Gives back what the device keeps for allocations to come.

        Raises:
            RuntimeError: The device has too little memory.
        """
        if self.weights.memory.tensors:
            return
        try:
            self.weights.give_up(weights())
        except (RequestError, MemoryLimitError) as error:
            _log.warning("no sleep at level 1 can be prepared: %s", error)
            return
        release()
        self.weights.take_back()

    def give_up(
        self,
        weights: Sequence[torch.UntypedStorage],
        layers: Sequence[CacheLayer],
        steps: Steps | None,
        agree: Callable[[bool], bool],
    ) -> bool:
        """Give memory back; return whether the steps stay valid, on every rank.

        Args:
            weights: All that lies on the device.
            layers: Whose caches go, if there are any.
            steps: Over them; None where caches are not there.
            agree: Tells whether all ranks say so.

        Raises:
            UserError: Weights cannot be moved; nothing has changed.
        """
        steps = steps or self._steps
        stays = steps is not None and self.weights.memory.keeps(weights)
        stays = stays and self._caches.keeps(memory_of(layers))
        stays = agree(stays)
        self.weights.give_up(weights)
        self._caches.give_up()
        self._steps = steps if stays else None
        if not stays:
            free_caches(layers)
            self._caches = DeviceMemory(self._transfer)
        return stays

    def take_steps(self) -> Steps | None:
        """Take caches back, empty, and return the steps; None where both have to be made anew.

        Raises:
            RuntimeError: There is too little memory; nothing was taken.
        """
        if self._steps is not None:
            self._take_caches()
        steps, self._steps = self._steps, None
        return steps

    def _take_caches(self) -> None:
        self._caches.take_back()
        for tensor in self._caches.tensors:
            tensor.zero_()  # what nobody reads must not spoil sums by NaN
