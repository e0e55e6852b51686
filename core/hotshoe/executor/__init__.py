"""Where steps are computed: the worker interface, and the form of KV blocks between engines."""

from hotshoe.executor.kv import KVBlocks, KVDescriptor, KVLayer, KVWorker, check_transfer
from hotshoe.executor.worker import ProfiledWorker, WeightsWorker, Worker, WorkerInfo

__all__ = [
    "KVBlocks",
    "KVDescriptor",
    "KVLayer",
    "KVWorker",
    "ProfiledWorker",
    "WeightsWorker",
    "Worker",
    "WorkerInfo",
    "check_transfer",
]
