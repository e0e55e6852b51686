"""The engine core: scheduler and worker, stepped. Knows no text and no HTTP.

Not thread-safe: one thread adds, aborts and steps. A worker that fails ends the engine; a request
that fails ends alone. `EngineLoop` drives it for front ends, `Engine` for `LLM`.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hotshoe.engine.client import STEP_SIZES, EngineStats, PauseMode
from hotshoe.engine.core.counts import StepCounts, engine_stats
from hotshoe.engine.core.fairness import FairQueue
from hotshoe.engine.core.kv_exchange import KVExchange, open_exchange
from hotshoe.engine.core.lookahead import next_adapters
from hotshoe.engine.core.seeds import Seeds
from hotshoe.engine.core.workers import Workers
from hotshoe.engine.start.places import read_tokenizer
from hotshoe.engine.start.setup import EngineSetup
from hotshoe.engine.wire.messages import Add
from hotshoe.errors import (
    CheckpointError,
    EngineDeadError,
    EngineError,
    HotshoeError,
    MemoryLimitError,
    QueueFullError,
    RequestError,
    UserError,
)
from hotshoe.executor import WorkerInfo
from hotshoe.grammar.backends import GrammarBackends
from hotshoe.grammar.vocabulary import vocabulary_of
from hotshoe.scheduler import Request, Scheduler, SchedulerConfig
from hotshoe.speculation.drafting import open_drafting
from hotshoe.speculation.tree_scheduler import TreeScheduler
from hotshoe.types import StepHandle, StepPlan, TokenOutput

if TYPE_CHECKING:
    from hotshoe.grammar.constraints import Constraints
    from hotshoe.loader.sources import Weights

PAUSE_MODES = ("abort", "wait", "keep")
#: How long a step waits for grammars to be compiled when it has nothing else to do.
GRAMMAR_WAIT_S = 0.005


class EngineCore:
    """Loads a model and runs requests.

    Args:
        setup: From `hotshoe.engine.start.setup.prepare`.

    Raises:
        UserError: The model cannot be loaded or its cache does not fit.
    """

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        config = setup.config
        grammars = setup.plugins.mapping("hotshoe_grammars")
        backend, blanks = config.structured_output_backend, config.structured_output_max_blanks
        judged = config.structured_output_one_of == "judged"
        self._backends = GrammarBackends(grammars, backend, blanks, judged)
        self._constraints: Constraints | None = None
        self.workers = Workers(setup)
        try:
            self._drafting = open_drafting(config, setup.plugins, self.workers.draft_model)
            self.workers.bring_up()
        except BaseException:
            self.workers.close()
            raise
        self._depth, self._loras_ahead = config.num_steps_in_flight, self.info.loras_ahead
        self._in_turns = config.pipeline_parallel_size > 1
        limits = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            num_blocks=self.workers.num_blocks,
            block_size=config.block_size,
            policy="priority" if config.scheduling_policy == "priority" else "fcfs",
            enable_prefix_caching=config.enable_prefix_caching,
            max_in_flight_steps=self._depth,
            in_turns=self._in_turns,
            max_adapters=config.max_loras,
            groups=() if (caches := self.info.caches) is None else caches.groups,
        )
        self._shares = FairQueue() if config.scheduling_policy == "fair" else None
        kind = Scheduler if config.draft_tree is None else TreeScheduler
        self._scheduler = kind(limits, self._shares)
        self._eos = frozenset(setup.model_config.eos_token_ids)
        self._seeds = Seeds(config.seed)
        self._in_flight: deque[tuple[StepPlan, StepHandle]] = deque()
        self._failure: BaseException | None = None
        self._pause: PauseMode | None = None
        self._is_quiet = False
        self._steps = StepCounts()

    @property
    def info(self) -> WorkerInfo:
        """What the worker says of the model."""
        return self.workers.info

    @property
    def is_paused(self) -> bool:
        return self._pause is not None

    @property
    def is_sleeping(self) -> bool:
        return bool(self.workers.asleep)

    @property
    def _frozen(self) -> bool:
        return self._pause == "keep" or self._is_quiet or bool(self.workers.asleep)

    def add(self, new: Add) -> None:
        """Queue a request, all its sequences or none.

        Raises:
            RequestError: It could never be served.
            QueueFullError: Too much waits already.
            EngineDeadError: The engine has failed.
        """
        self._check_alive()
        room = self.room(len(new.token_ids)) if self._scheduler.num_waiting else math.inf
        if self._shares is not None:
            room = self._shares.share(new.tenant, len(new.token_ids), room)
        if len(new.ids) > room:
            raise QueueFullError(
                f"{self._scheduler.num_waiting} requests with {self._scheduler.num_waiting_tokens} "
                f"tokens are waiting already; try again in {self.retry_after_s:.0f} s",
                self.retry_after_s,
            )
        labels = (new.priority, new.cache_salt, new.tenant, new.pooling, new.embeds, self._eos)
        params = new.params
        adapter = None if params.adapter is None else self.workers.adapters.key_of(params.adapter)
        add: Callable[[Request], None] = self._scheduler.add
        if params.grammar is not None:
            params = replace(params, grammar=self._backends.choose(params.grammar))
            add = self._open_constraints().add
        seeds = self._seeds.draw(params.seed, len(new.ids))
        for request_id, seed in zip(new.ids, seeds, strict=True):
            request = Request(request_id, new.token_ids, params, seed, *labels)
            request.adapter_key = adapter
            add(request)  # all are alike, so if one is refused, it is the first
            if self._drafting is not None:
                self._drafting.add(request)
            if params.prompt_logprobs is not None:  # once is enough; the others share its prefix
                params = replace(params, prompt_logprobs=None)

    def room(self, num_tokens: int = 1) -> float:
        """Return how many sequences of so many tokens the queue has room for, perhaps infinity.

        Sequences that a free row awaits do not count. When nothing waits, `add` takes a request
        that needs more room than there is, so that nobody is refused for ever.
        """
        config, scheduler, rooms = self.setup.config, self._scheduler, [math.inf]
        if config.max_num_queued_reqs is not None:
            stopped = self._frozen or self.is_paused
            free = 0 if stopped else config.max_num_seqs - scheduler.num_running
            rooms.append(config.max_num_queued_reqs + free - scheduler.num_waiting)
        if config.max_queued_tokens is not None:
            left = config.max_queued_tokens - scheduler.num_waiting_tokens
            rooms.append(left // max(num_tokens, 1))
        return max(0, min(rooms))

    @property
    def retry_after_s(self) -> float:
        """When to ask again while there is no room: as long as the last one had to wait."""
        return min(max(self._scheduler.last_wait_s, 1.0), 60.0)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests; unknown ids are ignored. No output follows for them."""
        for request_id in request_ids:
            self._scheduler.abort(request_id)
            for kept in (self._constraints, self._drafting):
                if kept is not None:
                    kept.discard(request_id)

    def has_work(self) -> bool:
        """Tell whether `step` has something to do."""
        if self._in_flight or self._frozen:
            return bool(self._in_flight)
        return self._scheduler.has_work() or self._compiling

    @property
    def _compiling(self) -> bool:
        return self._constraints is not None and self._constraints.compiling

    def stats(self) -> EngineStats:
        """Return the present counts."""
        level = self.workers.sleep_level
        return engine_stats(self._scheduler.stats(), self._steps, self.is_paused, level)

    def step(self) -> list[TokenOutput]:
        """Start as many steps as may be in flight, finish the oldest, return its news.

        Raises:
            EngineDeadError: The worker failed; the cause is chained.
        """
        self._check_alive()
        begin = time.perf_counter()
        outputs: list[TokenOutput] = []
        try:
            if self._constraints is not None and not self._frozen:
                outputs = self._constraints.collect()
            while len(self._in_flight) < self._most_in_flight and self._start():
                pass
            if not self._in_flight:
                if self._constraints is not None and self._compiling:
                    self._constraints.wait(GRAMMAR_WAIT_S)
                else:
                    assert not self.has_work(), "work remains, but nothing can be scheduled"
                return outputs
            plan, handle = self._in_flight.popleft()
            result = handle.result()
            news = self._scheduler.update(plan, result)
            outputs += news if self._constraints is None else self._constraints.advance(news)
            if self._drafting is not None:
                extend = None if self._constraints is None else self._constraints.extend
                size, made, timed = self.info.vocab_size, result.ahead, not result.recorded
                self._drafting.advance(plan, outputs, size, extend, made, timed)
                if self._drafting.proposed and not self._in_flight and self._depth > 1:
                    self._start()  # before the caller looks at what this one has brought
        except KeyboardInterrupt as error:  # it has torn the step apart
            self._failure = error
            raise
        except BaseException as error:
            self._fail(error)
        steps, num_tokens = self._steps, plan.num_tokens
        steps.last_s, steps.last_tokens = time.perf_counter() - begin, num_tokens
        steps.by_size[bisect_left(STEP_SIZES, num_tokens)] += 1
        steps.num_tokens += num_tokens
        steps.num_failed += len(result.failed)
        steps.experts = result.experts or steps.experts
        return outputs

    @property
    def _most_in_flight(self) -> int:
        """Beside a step that verifies drafts, a second one would hold those without alone."""
        if self._drafting is None or not self._drafting.proposed or self._in_turns:
            return self._depth
        return 1

    def _start(self) -> bool:
        """Start a step, if there is anything to do and nothing forbids it."""
        plan = None if self._frozen else self._scheduler.schedule()
        if plan is None:
            return False
        assert self.workers.main is not None
        plan.num_ahead = 0 if self._drafting is None else self._drafting.num_ahead
        if self._loras_ahead:
            plan.adapters_ahead = next_adapters(self._scheduler.waiting, self._loras_ahead)
        self._in_flight.append((plan, self.workers.main.execute(plan)))
        return True

    def pause(self, mode: PauseMode) -> list[TokenOutput]:
        """Queue new requests without running them, until `resume`.

        Args:
            mode: "keep" freezes the unfinished requests. With "wait" they go on, and with "abort"
                the caller aborts them; the engine is quiet once `has_work` says so.

        Returns:
            What steps that were under way brought.

        Raises:
            RequestError: The mode is unknown.
        """
        if mode not in PAUSE_MODES:
            raise RequestError(
                f"mode must be one of {', '.join(PAUSE_MODES)}, not {mode!r}", "mode"
            )
        self._pause = mode
        self._scheduler.hold()
        return self.quiesce() if self._frozen else []

    def resume(self) -> None:
        """Go on after `pause`."""
        self._pause = None
        self._scheduler.release()

    def sleep(self, level: int) -> list[TokenOutput]:
        """Freeze the unfinished requests and give memory back, as `EngineClient.sleep` says.

        Returns:
            What steps that were under way brought.

        Raises:
            RequestError: The level is unknown, or not offered; nothing has changed.
        """
        self.workers.check_sleep(level, "keep")
        outputs = self.quiesce()
        with self._or_dead((UserError,)):
            lost = self.workers.fall_asleep(level)
        if lost:
            self._scheduler.reset_prefix_cache()
        return outputs

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Take back what `sleep` gave away; go on when nothing is missing.

        Raises:
            RequestError: A tag is unknown, or the cache would come before the weights.
            MemoryLimitError, CheckpointError: Memory or files are missing; it sleeps on.
            EngineDeadError: The weights could not be loaded again; the cause is chained.
        """
        missing = self.workers.tags_to_wake(tags)
        with self._or_dead((MemoryLimitError, CheckpointError)):
            self.workers.wake(missing)

    def update_weights(self, weights: Weights) -> None:
        """Replace weights between steps, as `EngineClient.update_weights` says.

        Raises:
            RequestError: A step is under way, the weights sleep, or cannot be replaced.
            CheckpointError: They do not fit; nothing has changed.
            EngineDeadError: Only part of them could be written; the cause is chained.
        """
        if self._in_flight:
            raise RequestError("weights are replaced between steps; call quiesce first")
        with self._or_dead((UserError,)):
            self.workers.update_weights(weights)
        self._scheduler.reset_prefix_cache()

    def load_adapter(self, name: str, path: str) -> None:
        self.workers.adapters.load(self.workers.main, name, path, self._scheduler.adapters())

    def unload_adapter(self, name: str) -> None:
        self.workers.adapters.unload(self.workers.main, name, self._scheduler.adapters())

    @contextmanager
    def _or_dead(self, harmless: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
        """End the engine where something fails that has no way back."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, *harmless)):
                raise
            self._fail(error)

    def reset_prefix_cache(self, reset_running: bool = False) -> bool:
        """Forget cached prefixes; False if requests run and may not be computed anew."""
        if self._scheduler.num_running and not reset_running:
            return False
        self._scheduler.reset_prefix_cache()
        return True

    def kv_exchange(self) -> KVExchange:
        """Return what passes KV blocks on to other engines, for use before the next step.

        Raises:
            KVTransferError: There are no blocks that could be moved.
            RequestError: A step is under way; pause the engine first.
        """
        if self._in_flight:
            raise RequestError("KV blocks are moved between steps; pause the engine first")
        return open_exchange(self.workers.main, self._scheduler.cache)

    def _open_constraints(self) -> Constraints:
        """Get ready for requests with a grammar, when the first one comes."""
        if self._constraints is None:
            from hotshoe.grammar.constraints import Constraints  # needs numpy

            config, model = self.setup.config, self.setup.model_config
            path = Path(config.tokenizer) if config.tokenizer else model.path
            self._constraints = Constraints(
                self._scheduler,
                self._backends,
                lambda: vocabulary_of(
                    read_tokenizer(path, self.setup.plugins), self.info.vocab_size, self._eos
                ),
                config.structured_output_cache_bytes,
                config.structured_output_timeout_s,
                self.info.vocab_size,
            )
        return self._constraints

    def quiesce(self) -> list[TokenOutput]:
        """Finish the steps in flight, start none, and return what they brought."""
        outputs: list[TokenOutput] = []
        self._is_quiet = True
        try:
            while self._in_flight:
                outputs += self.step()
        finally:
            self._is_quiet = False
        return outputs

    def _fail(self, error: BaseException) -> NoReturn:
        """End the engine."""
        self._failure = error
        self._check_alive()
        raise AssertionError

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
        if self._constraints is not None:
            self._constraints.close()
        self.workers.close()
