"""The scheduler: one token budget a step, no prefill phase and no decode phase.

Every request lets `num_computed_tokens` catch up with its tokens. Steps are planned by
`schedule` and their results booked by `update`, in the same order; with `max_in_flight_steps`
above 1, a step is planned before the results of the one before it are known. Called by the engine
core, from one thread.

What holds throughout:
- Running requests are sorted by `Request.order`. They are planned from the front and preempted
  from the back, so a request is never preempted in a step that already computes it, and the
  blocks that were registered for the step are sure to be written.
- The front request can always take every block (`add` refused it otherwise), so work never stops.
- A preempted request waits until its last sampled token is known; so at any time at most one row
  of the steps in flight can speak for a request.
- A stepwise request is planned only when all its tokens are known. Its last token decides which
  may follow: those of a grammar's `mask`, or those of its `drafts`; both travel with the plan.
- Where steps take turns (`in_turns`), every request is stepwise, each step takes its share of
  them, and the token that a row goes on from travels with the plan.
- Drafts count against the budget and need blocks, but never displace another request.
  `num_computed_tokens` leaves them out until they are accepted; their places are written again.
"""

import heapq
import time
from bisect import bisect_left, insort
from collections import Counter, deque
from dataclasses import replace
from operator import attrgetter
from typing import Any

from hotshoe.errors import RequestError
from hotshoe.kv import KVCoordinator, PrefixHit, TableChanges
from hotshoe.scheduler.config import SchedulerConfig
from hotshoe.scheduler.drafts import DraftCounts
from hotshoe.scheduler.queue import WaitingQueue
from hotshoe.scheduler.request import Request, lacks_place, length_limit
from hotshoe.scheduler.stats import SchedulerStats
from hotshoe.scheduler.step import ScheduledStep
from hotshoe.types.outputs import FinishReason, TokenOutput
from hotshoe.types.steps import NewRow, StepPlan, StepResult

_ORDER = attrgetter("order")


class Scheduler:
    """Plans steps and books their results.

    Args:
        config: Limits and policy.
        waiting: Where requests wait; None is a queue by `Request.order`.
    """

    def __init__(self, config: SchedulerConfig, waiting: WaitingQueue | None = None) -> None:
        self.config = config
        self.cache = KVCoordinator(
            config.pools,
            config.block_size,
            config.enable_prefix_caching,
            groups=config.groups,
            step_tokens=config.max_num_batched_tokens,
        )
        self._requests: dict[str, Request] = {}
        self.waiting = WaitingQueue() if waiting is None else waiting
        self._running: list[Request] = []
        self._rows: list[Request | None] = [None] * config.max_num_seqs
        self._free_rows = list(range(config.max_num_seqs))
        self._in_flight: deque[ScheduledStep] = deque()
        self._next_step_id = 0
        self._next_arrival = 0
        # Requests that are not ready or are held; they wait for `make_ready` and `release`.
        self._aside = WaitingQueue()
        self._holding = False
        self.last_wait_s = 0.0
        self._num_preemptions = self._num_generated_tokens = 0
        self._num_prompt_tokens = self._num_cached_tokens = 0
        self._num_finished: Counter[str] = Counter()
        self._drafts = DraftCounts()
        # The first waiting request, if no block was released since it found too few of them.
        self._refused: Request | None = None

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self._aside)

    @property
    def num_waiting_tokens(self) -> int:
        return self.waiting.num_tokens + self._aside.num_tokens

    def has_work(self) -> bool:
        """Return whether a step is to be updated, or a request unfinished that may be run."""
        return bool(self._in_flight) or len(self._requests) > len(self._aside)

    def stats(self) -> SchedulerStats:
        """Return the present counts."""
        waiting = self.num_waiting, len(self._aside), self.num_waiting_tokens, self.last_wait_s
        prompts = self._num_prompt_tokens, self._num_cached_tokens
        totals = self._num_preemptions, *prompts, self._num_generated_tokens
        ends = dict(self._num_finished), replace(self._drafts), self.adapters()
        return SchedulerStats(self.num_running, *waiting, self.cache.stats(), *totals, *ends)

    def add(self, request: Request, ready: bool = True) -> None:
        """Queue a new request.

        Args:
            request: Its fields down to `eos_token_ids` are given.
            ready: False keeps it from being run until `make_ready`.

        Raises:
            RequestError: It could not be served even if it were alone, or its id is in use.
        """
        if request.request_id in self._requests:
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        request.max_total_tokens = length_limit(request, self.config, self.cache)
        priority = request.priority if self.config.policy == "priority" else 0
        request.order = (priority, self._next_arrival)
        self._next_arrival += 1
        request.queued_s = time.monotonic()
        request.ready, request.held = ready, self._holding
        request.in_turns = self.config.in_turns
        request.stepwise = request.stepwise or request.in_turns
        self._requests[request.request_id] = request
        self._queue_of(request).push(request)

    def make_ready(self, request_id: str) -> None:
        """Let a request be run that was added as not ready. It keeps its place in the order."""
        request = self._requests[request_id]
        self._aside.remove(request)
        request.ready = True
        self._queue_of(request).push(request)

    def adapters(self) -> dict[str, tuple[int, int]]:
        """Return how many requests with an adapter wait, and how many run, by its name."""
        found: Counter[tuple[str | None, bool]] = Counter(
            (request.params.adapter, request.row is not None) for request in self._requests.values()
        )
        return {name: (found[name, False], found[name, True]) for name, _ in found if name}

    def hold(self) -> None:
        """Hold back the requests that are added from now on; others go on."""
        self._holding = True

    def release(self) -> None:
        """Let the requests be run that were held back; they keep their places in the order."""
        self._holding = False
        for request in self._requests.values():
            if request.held:
                self._aside.remove(request)
                request.held = False
                self._queue_of(request).push(request)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> bool:
        """Drop a request, counting it under `reason`; nothing more is put out for it.

        Returns:
            False if there is no such unfinished request.
        """
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, reason)
        return request is not None

    def schedule(self) -> StepPlan | None:
        """Plan the next step.

        Returns:
            None if nothing can be computed before a step in flight is updated or a request is
            added.
        """
        assert len(self._in_flight) < self.config.max_in_flight_steps, "too many steps in flight"
        if self._in_flight and self._in_flight[-1].plan.draft_rows and not self.config.in_turns:
            return None  # who has no drafts would run apart from the others from now on
        if self.cache.has_news:
            self.cache.begin_step()
        spare = self.config.max_num_batched_tokens - len(self._running)
        step = ScheduledStep(StepPlan(self._next_step_id), spare, self._share())
        plan_running = self._schedule_turn if self.config.in_turns else self._schedule_running
        self._schedule_waiting(step, budget=plan_running(step))
        if not step.plan.rows:
            return None
        step.requests = self._rows.copy()
        self._in_flight.append(step)
        self._next_step_id += 1
        return step.plan

    def update(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Book the oldest step in flight.

        Tokens of requests that were finished or aborted meanwhile are dropped; those of preempted
        ones count.

        Returns:
            One output for each request that got tokens or ended.
        """
        step = self._in_flight.popleft()
        assert plan is step.plan and plan.step_id == result.step_id, "steps out of order"
        requests, drafted = step.requests, bool(plan.draft_rows)
        outputs: list[TokenOutput] = []
        for row, tokens in zip(result.rows, result.tokens, strict=True):
            request = requests[row]
            assert request is not None
            if drafted and len(tokens) > 1:
                *accepted, token = tokens = request.up_to_stop(tokens)
                self._accept(request, row, accepted)
            else:
                [token] = tokens
            if request.row != row:  # No longer running there.
                if request.finished:
                    continue
                request.num_pending_steps -= 1
                self.waiting.grow(request, 1)
            token_ids = request.token_ids
            token_ids.append(token)
            output = TokenOutput(
                request.request_id,
                tokens,
                num_cached_tokens=request.num_cached_tokens,
                scheduled_s=request.scheduled_s,
            )
            outputs.append(output)
            if token in request.stop_token_ids or len(token_ids) >= request.max_total_tokens:
                self._finish_if_ended(request, token, output)
        self._num_generated_tokens += len(outputs)
        if drafted:
            self._drafts.add(plan, result)
        for row, vector in result.pooled.items():
            self._end(requests[row], outputs, FinishReason.STOP, pooled=vector)
        for row, error in result.failed.items():
            self._end(requests[row], outputs, FinishReason.ERROR, error=error)
        if result.logprobs or step.prompt_starts:
            step.attach_logprobs(result, outputs)
        return outputs

    def reset_prefix_cache(self) -> None:
        """Use nothing again that has been computed so far, as after a change of weights.

        Running requests are preempted and computed anew from their tokens.
        """
        while self._running:
            self._preempt_last()
        self.cache.reset_prefix_cache()

    def check(self) -> None:
        """Assert that requests, rows and blocks agree. O(everything): tests."""
        self.cache.check()
        assert self._running == sorted(self._running, key=_ORDER)
        assert len(self._running) + self.num_waiting == len(self._requests)
        waiting = [r for r in self._requests.values() if r.row is None]
        assert sum(len(r.token_ids) for r in waiting) == self.num_waiting_tokens
        in_rows = {row: request for row, request in enumerate(self._rows) if request is not None}
        assert in_rows == {request.row: request for request in self._running}
        assert sorted([*in_rows, *self._free_rows]) == list(range(len(self._rows)))
        assert all(r.row is not None or not r.tables for r in self._requests.values())
        self.cache.check_held(self._requests.values())

    def _queue_of(self, request: Request) -> WaitingQueue:
        """Return where a request waits."""
        return self.waiting if request.ready and not request.held else self._aside

    def _share(self) -> int:
        """Return how many requests the next step may compute: all, or those whose turn it is."""
        config = self.config
        if not config.in_turns:
            return config.max_num_seqs
        first, wanting = self.waiting.first(), len(self._running)
        if first is not None and not first.num_pending_steps and self._find_room(first):
            wanting = min(wanting + len(self.waiting), config.max_num_seqs)
        return -(-wanting // config.max_in_flight_steps)

    def _schedule_turn(self, step: ScheduledStep) -> int:
        """Plan running requests that no step in flight samples for; return what is left."""
        budget = self.config.max_num_batched_tokens
        for request in self._running:
            if not budget or len(step.plan.rows) >= step.max_rows:
                break
            budget -= self._continue(request, step, budget)
        return budget

    def _schedule_running(self, step: ScheduledStep) -> int:
        """Plan the running requests; return what is left of the budget."""
        budget, plan = self.config.max_num_batched_tokens, step.plan
        add_row, add_count = plan.rows.append, plan.num_scheduled_tokens.append
        # Preemption shortens the list behind the request at hand, which the loop tolerates.
        for request in self._running:
            computed = request.num_computed_tokens
            if computed < request.fast_until:
                request.num_computed_tokens = computed + 1
                add_row(request.row)  # type: ignore[arg-type]  # running, so not None
                add_count(1)
                budget -= 1
            else:
                budget -= self._continue(request, step, budget)
            if not budget:
                break
        return budget

    def _continue(self, request: Request, step: ScheduledStep, budget: int) -> int:
        """Plan a running request of which more is to be done than one more token in its block.

        Returns:
            Number of tokens planned; 0 if it can go on only after an update, or was preempted.
        """
        start = request.num_computed_tokens
        known = len(request.token_ids) if request.stepwise else request.num_tokens
        # Its last token needs no computing, even while that token is not known yet.
        stop = min(known, request.max_total_tokens - 1, start + budget)
        if stop <= start:
            return 0
        stop = self.cache.step_end(start, stop)
        row, plan = request.row, step.plan
        assert row is not None
        changes: TableChanges = []
        drafts = self._take_drafts(request, stop, step, budget, changes) if request.drafts else []
        while not drafts and not self.cache.grow(request, start, stop, changes):
            if self._preempt_last() is request:
                return 0
        plan.change_tables(row, changes)
        count = self._book(request, row, stop, step, len(drafts))
        if drafts:
            plan.draft_rows.append(row)
            plan.drafts.append(drafts)
            plan.num_scheduled_tokens[-1] += len(drafts)
        return count + len(drafts)

    def _take_drafts(
        self, request: Request, stop: int, step: ScheduledStep, budget: int, changes: TableChanges
    ) -> list[int]:
        """Return the drafts of a request that there is room for; they get blocks."""
        if stop < len(request.token_ids):
            return []
        start = request.num_computed_tokens
        limit = min(step.spare, budget - (stop - start), request.max_total_tokens - 1 - stop)
        limit = self.cache.draft_end(stop, stop + max(limit, 0)) - stop
        drafts, request.drafts = request.drafts[:limit], []
        ends = stop, stop + len(drafts)  # a state is kept at the first
        if not all(self.cache.grow(request, start, end, changes) for end in ends):
            return []
        step.spare -= len(drafts)
        return drafts

    def _schedule_waiting(self, step: ScheduledStep, budget: int) -> None:
        """Start waiting requests in strict order, as far as budget, rows and blocks go."""
        waiting, rows = self.waiting.requests, step.plan.rows
        while waiting and budget and self._free_rows and len(rows) < step.max_rows:
            request = self.waiting.first()
            if request is None or request.num_pending_steps:
                return
            hit = self._find_room(request)
            if hit is None or (self.config.num_blocks == () and len(request.token_ids) > budget):
                return
            budget -= self._start(request, hit, step, budget)

    def _find_room(self, request: Request) -> PrefixHit | None:
        """Return the cached prefix of a waiting request, or None if it must wait for others to end.

        There must be room for all its known tokens, however few of them this step may compute,
        and one more block for each running request, so that letting it in does not soon push
        another out.
        """
        if request is self._refused or lacks_place(request, self._running, self.config):
            return None
        # Cached blocks come without the hidden states that were computed with them.
        whole = request.reads_whole_prompt
        hit = self.cache.no_prefix() if whole else self.cache.find_prefix(request)
        if self.cache.fits(hit, len(request.token_ids), spare_blocks=len(self._running)):
            return hit
        self._refused = request
        return None

    def _start(self, request: Request, hit: PrefixHit, step: ScheduledStep, budget: int) -> int:
        """Give a waiting request a row and plan its first tokens; return their number."""
        start = hit.num_tokens
        stop = self.cache.step_end(start, min(len(request.token_ids), start + budget))
        self.cache.admit(request, hit, stop)
        row = request.row = heapq.heappop(self._free_rows)
        self._rows[row] = request
        if not request.was_preempted:
            request.num_cached_tokens = start
            request.scheduled_s = time.monotonic()
            self.last_wait_s = request.scheduled_s - request.queued_s
            self._num_prompt_tokens += request.num_prompt_tokens
            self._num_cached_tokens += start
        self.waiting.start(request)
        insort(self._running, request, key=_ORDER)
        request.num_computed_tokens = start
        tokens, blocks = request.token_ids.copy(), self.cache.block_ids(request.tables)
        length, params = request.num_prompt_tokens, request.params
        more = (request.seed, request.pooling, request.embeds)
        step.plan.new_rows.append(NewRow(row, tokens, length, start, blocks, params, *more))
        return self._book(request, row, stop, step)

    def _book(
        self, request: Request, row: int, stop: int, step: ScheduledStep, num_drafts: int = 0
    ) -> int:
        """Plan a running request's tokens up to `stop`, for which it has blocks; count them."""
        start, known = request.num_computed_tokens, len(request.token_ids)
        step.plan.rows.append(row)
        step.plan.num_scheduled_tokens.append(stop - start)
        if request.prompt_logprobs is not None and start < request.num_prompt_tokens:
            step.prompt_starts[row] = start + 1
        if request.num_accepted:
            step.plan.accepted_rows.append(row)
            step.plan.num_accepted.append(request.num_accepted)
            request.num_accepted = 0
        request.num_computed_tokens = stop
        self.cache.register(request, min(stop, known))
        if stop < known:
            return stop - start
        if not request.stepwise:  # It samples in this step: from now on it decodes.
            request.fast_until = min(self.cache.capacity(request), request.max_total_tokens - 1)
            return stop - start
        if request.in_turns and known > request.num_prompt_tokens:
            step.plan.known_rows.append(row)
            step.plan.known_tokens.append(request.token_ids[-1])
        if request.mask is not None:
            masks = [request.mask, *request.draft_masks[:num_drafts]]
            step.plan.mask_rows.extend([row] * len(masks))
            step.plan.masks.extend(masks)
        return stop - start

    def _preempt_last(self) -> Request:
        """Take everything but its tokens from the last running request and let it wait again.

        Its full blocks stay in the prefix cache until they are reused, so that it may find them.
        """
        request = self._running.pop()
        request.num_pending_steps = request.num_tokens - len(request.token_ids)
        self._release(request)
        request.was_preempted = True
        self._refused = None
        self.waiting.push(request)
        self._num_preemptions += 1
        return request

    def _release(self, request: Request) -> None:
        """Take back the row and the blocks of a request that is no longer in the running list."""
        assert request.row is not None
        self.cache.register(request, min(request.num_computed_tokens, len(request.token_ids)))
        self.cache.free(request)
        self._rows[request.row] = None
        heapq.heappush(self._free_rows, request.row)
        self.waiting.stop(request)
        request.row = None
        request.fast_until = request.num_accepted = 0

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """Forget a request, wherever it is."""
        self._num_finished[reason.value] += 1
        if request.row is None:
            self._queue_of(request).remove(request)
        else:
            del self._running[bisect_left(self._running, request.order, key=_ORDER)]
            self._release(request)
        request.finished = True
        del self._requests[request.request_id]
        self._refused = None

    def _finish_if_ended(self, request: Request, token: int, output: TokenOutput) -> None:
        """Finish a request whose new token is a stop token or reaches its length limit."""
        num_generated = len(request.token_ids) - request.num_prompt_tokens
        if token in request.stop_token_ids and num_generated > request.params.min_tokens:
            output.finish_reason = FinishReason.STOP
            if token in request.params.stop_token_ids:
                output.stop_token_id = token
        elif len(request.token_ids) >= request.max_total_tokens:
            output.finish_reason = FinishReason.LENGTH
        else:
            return
        self._finish(request, output.finish_reason)

    def _accept(self, request: Request, row: int, accepted: list[int]) -> None:
        """Book accepted drafts, behind which one more token is to be booked."""
        if request.finished:
            return
        request.token_ids += accepted
        self._num_generated_tokens += len(accepted)
        if request.row == row:
            request.num_accepted = len(accepted)
            request.num_computed_tokens += len(accepted)
        else:
            self.waiting.grow(request, len(accepted))

    def _end(
        self, request: Request | None, outputs: list[TokenOutput], reason: FinishReason, **more: Any
    ) -> None:
        """Finish a request that got no token; trust no block of one that could not be computed."""
        assert request is not None
        if request.finished:
            return
        self._finish(request, reason)
        if reason is FinishReason.ERROR:
            self.cache.forget(request)
        output = TokenOutput(request.request_id, [], finish_reason=reason, **more)
        output.num_cached_tokens = request.num_cached_tokens
        output.scheduled_s = request.scheduled_s
        outputs.append(output)
