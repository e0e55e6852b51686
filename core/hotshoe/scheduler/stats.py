"""What the scheduler tells of itself. The engine core makes its own counts of it."""

from dataclasses import dataclass

from hotshoe.kv import CacheStats
from hotshoe.scheduler.drafts import DraftCounts


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counts at one moment, then totals since the start.

    Attributes:
        num_waiting: Requests without a row, those held back included.
        num_aside: Of these, requests that are not ready or held back.
        num_waiting_tokens: Known tokens of those that wait.
        last_wait_s: How long the request that was started last had waited.
        num_prompt_tokens: Of requests that were started.
        num_cached_tokens: Of these, tokens whose cache blocks were found.
        num_finished: Ended requests by finish reason.
        adapters: As `Scheduler.adapters` returns them.
    """

    num_running: int
    num_waiting: int
    num_aside: int
    num_waiting_tokens: int
    last_wait_s: float
    cache: CacheStats
    num_preemptions: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_finished: dict[str, int]
    drafts: DraftCounts
    adapters: dict[str, tuple[int, int]]
