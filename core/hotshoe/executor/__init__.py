"""Where steps are computed: the worker interface, groups of ranks, and the form of KV blocks."""

from hotshoe.executor.group import RankGroup, Seat
from hotshoe.executor.kv import KVBlocks, KVDescriptor, KVWorker, check_transfer
from hotshoe.executor.worker import (
    AdapterWorker,
    ProfiledWorker,
    StatesWorker,
    WeightsWorker,
    Worker,
    WorkerInfo,
)

__all__ = [
    "AdapterWorker",
    "KVBlocks",
    "KVDescriptor",
    "KVWorker",
    "ProfiledWorker",
    "RankGroup",
    "Seat",
    "StatesWorker",
    "WeightsWorker",
    "Worker",
    "WorkerInfo",
    "check_transfer",
]
