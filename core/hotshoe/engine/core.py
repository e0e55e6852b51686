"""The engine core: scheduler and worker, stepped. Knows no text and no HTTP.

Not thread-safe: one thread adds, aborts and steps. A worker that fails ends the engine; a request
that fails ends alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping

from hotshoe.config import EngineConfig
from hotshoe.engine.setup import EngineSetup
from hotshoe.errors import EngineDeadError, EngineError, HotshoeError, MemoryLimitError
from hotshoe.executor import WorkerInfo
from hotshoe.scheduler import Request, Scheduler, SchedulerConfig
from hotshoe.scheduler.scheduler import SchedulerStats
from hotshoe.types import StepHandle, StepPlan, TokenOutput


class EngineCore:
    """Loads a model and runs requests.

    Args:
        setup: From `hotshoe.engine.setup.prepare`.

    Raises:
        UserError: The model cannot be loaded or its cache does not fit.
    """

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        config = setup.config
        self._worker = setup.create_worker()
        self.info: WorkerInfo = self._worker.load()
        begin = time.perf_counter()
        num_blocks = plan_cache(config, self.info)
        self._worker.allocate_cache(num_blocks)
        self.startup: dict[str, float] = {
            **self.info.phases,
            "allocate cache": time.perf_counter() - begin,
        }
        self._depth = 2 if config.async_scheduling else 1
        assert config.max_model_len is not None and config.block_size is not None
        assert config.max_num_batched_tokens is not None
        self._scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=config.max_model_len,
                num_blocks=num_blocks,
                block_size=config.block_size,
                policy="priority" if config.scheduling_policy == "priority" else "fcfs",
                enable_prefix_caching=config.enable_prefix_caching,
                max_in_flight_steps=self._depth,
            )
        )
        self._in_flight: deque[tuple[StepPlan, StepHandle]] = deque()
        self._failure: BaseException | None = None

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes by purpose."""
        blocks = self._scheduler.config.num_blocks
        return {"weights": self.info.weight_bytes, "kv_cache": blocks * self.info.block_bytes}

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: It could never be served.
            EngineDeadError: The engine has failed.
        """
        self._check_alive()
        self._scheduler.add(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests; unknown ids are ignored. No output follows for them."""
        for request_id in request_ids:
            self._scheduler.abort(request_id)

    def has_work(self) -> bool:
        """Tell whether `step` has something to do."""
        return self._scheduler.has_work()

    def stats(self) -> SchedulerStats:
        """Return counts of the scheduler and its cache."""
        return self._scheduler.stats()

    def step(self) -> list[TokenOutput]:
        """Start as many steps as may be in flight, finish the oldest, return its news.

        Raises:
            EngineDeadError: The worker failed; the cause is chained.
        """
        self._check_alive()
        try:
            while len(self._in_flight) < self._depth:
                plan = self._scheduler.schedule()
                if plan is None:
                    break
                self._in_flight.append((plan, self._worker.execute(plan)))
            if not self._in_flight:
                assert not self._scheduler.has_work(), "work remains, but nothing can be scheduled"
                return []
            plan, handle = self._in_flight.popleft()
            return self._scheduler.update(plan, handle.result())
        except Exception as error:
            self._failure = error
            self._check_alive()
            raise

    def _check_alive(self) -> None:
        if self._failure is not None:
            if isinstance(self._failure, HotshoeError):
                cause = str(self._failure)
            else:
                cause = f"{type(self._failure).__name__}: {self._failure}"
            raise EngineDeadError(f"the engine has stopped: {cause}") from self._failure

    def close(self) -> None:
        """Release the device; later calls raise EngineDeadError."""
        if self._failure is None:
            self._failure = EngineError("it was closed")
        self._in_flight.clear()
        self._worker.close()


def plan_cache(config: EngineConfig, info: WorkerInfo) -> int:
    """Return the number of blocks: what the budget allows, at most what requests could use.

    Raises:
        MemoryLimitError: Not even one request of full length fits.
    """
    assert config.max_model_len is not None and config.block_size is not None
    budget = config.kv_cache_memory_bytes
    note = "kv_cache_memory_bytes"
    if budget is None:
        budget, note = info.cache_budget_bytes, info.budget_note
    per_request = -(-config.max_model_len // config.block_size)
    num_blocks = min(budget // max(info.block_bytes, 1), per_request * config.max_num_seqs)
    if num_blocks < per_request:
        mib = 2**20
        raise MemoryLimitError(
            f"the KV cache may take {budget / mib:.0f} MiB ({note}), but one request of "
            f"max_model_len {config.max_model_len} needs "
            f"{per_request * info.block_bytes / mib:.0f} MiB; lower --max-model-len "
            f"(at most {budget // max(info.block_bytes, 1) * config.block_size} fits), "
            "or raise --kv-cache-memory-bytes"
        )
    return int(num_blocks)
