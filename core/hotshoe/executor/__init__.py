"""Where steps are computed: the worker interface, and the executor in this process."""

from hotshoe.executor.worker import ProfiledWorker, Worker, WorkerInfo

__all__ = ["ProfiledWorker", "Worker", "WorkerInfo"]
