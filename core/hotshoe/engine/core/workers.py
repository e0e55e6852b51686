"""The workers of an engine: the model's, and a draft model's beside it. Brings them up, lets them
sleep, wakes them, and gives them new weights and adapters. `EngineCore` says when: between steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hotshoe.engine.core import rest
from hotshoe.engine.core.adapters import Adapters
from hotshoe.engine.core.draft_model import open_draft_model
from hotshoe.engine.start.cache_plan import cache_bytes, check_free, plan_cache
from hotshoe.engine.start.setup import EngineSetup
from hotshoe.errors import CheckpointError, MemoryLimitError, RequestError
from hotshoe.executor import ProfiledWorker, Worker, WorkerInfo

if TYPE_CHECKING:
    from hotshoe.loader.sources import Weights


class Workers:
    """Made at once; `bring_up` comes before all else.

    Attributes:
        main: Computes the model's steps; None before `bring_up`, and while it is closed to sleep.
        draft_model: None without one.
        adapters: Those that requests may name.
        asleep: Tags of what sleeps.
        info: What the worker says of the model.
        num_blocks: Blocks of the KV cache, of each pool.
        startup: Seconds by what they were spent on.
    """

    info: WorkerInfo
    num_blocks: tuple[int, ...]
    startup: Mapping[str, float]

    def __init__(self, setup: EngineSetup) -> None:
        self._setup = setup
        self.main: Worker | None = None
        self.draft_model = open_draft_model(setup)
        self.adapters = Adapters(setup.config.lora_modules)
        self.asleep: set[str] = set()

    def bring_up(self) -> None:
        """Load the models and take their caches.

        Raises:
            UserError: The model cannot be loaded or its cache does not fit.
        """
        self.main = worker = self._setup.create_worker()
        draft, config = self.draft_model, self._setup.config
        if draft is not None:
            draft.load()
        info = self.info = worker.load()
        self.adapters.open(worker)
        begin, loaded = time.perf_counter(), sum(info.phases.values())
        if draft is not None:
            config, info = draft.share(config, info)
        self.num_blocks = plan_cache(config, info)
        taken = cache_bytes(info, self.num_blocks) + (0 if draft is None else draft.beside_bytes)
        check_free(self._setup.selector.facts, info.free_bytes, taken)
        worker.allocate_cache(self.num_blocks)
        if draft is not None:
            draft.allocate()
        phases = self.info.phases  # to which a worker may just have added
        inside = sum(phases.values()) - loaded
        self.startup = {**phases, "allocate cache": time.perf_counter() - begin - inside}

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes by purpose."""
        kv_cache = cache_bytes(self.info, self.num_blocks)
        own = {"weights": self.info.weight_bytes, "kv_cache": kv_cache}
        return own if self.draft_model is None else {**own, **self.draft_model.memory}

    @property
    def sleep_level(self) -> int | None:
        """The level of sleep, None while all is awake."""
        return rest.sleep_level(self.asleep, self.main)

    def check_sleep(self, level: int, mode: str) -> None:
        """Refuse a sleep that cannot be, before requests are ended for it.

        Raises:
            RequestError: Level or mode are unknown, or the level is not offered.
        """
        rest.check_sleep(level, mode, self.main)

    def fall_asleep(self, level: int) -> bool:
        """Give memory back; return whether caches went, which those that sleep do not have.

        Raises:
            RequestError: The weights cannot be moved; nothing has changed.
        """
        losing = self.main is not None and (
            level == 2 or (level == 1 and "weights" not in self.asleep)
        )
        if losing:
            assert self.main is not None
            self.main = rest.fall_asleep(self.main, level)
            if self.draft_model is not None:
                self.draft_model.fall_asleep(level)
        self.asleep |= set(rest.SLEEP_LEVELS[level])
        return losing

    def tags_to_wake(self, tags: Iterable[str] | None) -> set[str]:
        """Return which sleeping parts are meant.

        Raises:
            RequestError: A tag is unknown, or the cache would come before the weights.
        """
        return rest.tags_to_wake(tags, self.asleep)

    def wake(self, missing: set[str]) -> None:
        """Take back what `fall_asleep` gave away, or some of it, from `tags_to_wake`.

        Raises:
            MemoryLimitError: There is too little; all sleeps as before.
            CheckpointError: Files cannot be read; all sleeps as before.
        """
        create, load = self._setup.create_worker, self.adapters.open
        level = 2 if self.main is None else 1
        try:
            self.main = woken = rest.wake(self.main, missing, create, self.num_blocks, load)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; the engine sleeps on: put the files back, or unload the adapter that "
                "lacks them, and wake it again"
            ) from None
        if self.draft_model is not None:
            try:
                self.draft_model.wake(missing)
            except (MemoryLimitError, CheckpointError):
                if "weights" in missing:
                    assert woken is not None
                    self.main = rest.fall_asleep(woken, level)
                raise
        self.asleep -= missing

    def update_weights(self, weights: Weights) -> None:
        """Write new weights over the old ones.

        Raises:
            RequestError: The weights sleep, or cannot be replaced.
            CheckpointError: They do not fit; nothing was written.
        """
        rest.replace_weights(self.main, self.asleep, weights)

    def start_profile(self, folder: str) -> None:
        """Record the steps that follow, as `EngineClient.start_profile` says.

        Raises:
            RequestError: It cannot be done.
        """
        self._profiled().start_profile(folder)

    def stop_profile(self) -> str:
        """Write the recording and return its file's name.

        Raises:
            RequestError: There is none.
        """
        return self._profiled().stop_profile()

    def _profiled(self) -> ProfiledWorker:
        if isinstance(self.main, ProfiledWorker):
            return self.main
        raise RequestError("what computes steps here cannot record them, or sleeps")

    def close(self) -> None:
        """Release the devices."""
        for worker in (self.main, self.draft_model):
            if worker is not None:
                worker.close()
