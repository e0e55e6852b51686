"""What the engine core counts, and how its totals become `EngineStats`."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotshoe.engine.client import STEP_SIZES, EngineStats
from hotshoe.scheduler.stats import SchedulerStats
from hotshoe.types.experts import ExpertCounts


@dataclass(slots=True)
class StepCounts:
    """Totals over steps, which the engine core adds to.

    Attributes:
        by_size: Steps, by the first of `STEP_SIZES` that their tokens do not exceed.
        num_tokens: Of all steps.
        num_failed: Rows without finite logits.
        last_s: Duration of the last step.
        last_tokens: Tokens of the last step.
        experts: What the last step that told of them said.
    """

    by_size: list[int] = field(default_factory=lambda: [0] * (len(STEP_SIZES) + 1))
    num_tokens: int = 0
    num_failed: int = 0
    last_s: float = 0.0
    last_tokens: int = 0
    experts: ExpertCounts = field(default_factory=ExpertCounts)


def engine_stats(
    counts: SchedulerStats,
    steps: StepCounts,
    is_paused: bool,
    sleep_level: int | None,
) -> EngineStats:
    """Return what front ends are told."""
    cache = counts.cache
    return EngineStats(
        num_running=counts.num_running,
        num_waiting=counts.num_waiting,
        num_aside=counts.num_aside,
        num_waiting_tokens=counts.num_waiting_tokens,
        num_blocks=cache.num_blocks,
        num_used_blocks=cache.num_used_blocks,
        num_queried_tokens=cache.num_queried_tokens,
        num_hit_tokens=cache.num_hit_tokens,
        num_preemptions=counts.num_preemptions,
        num_prompt_tokens=counts.num_prompt_tokens,
        num_cached_tokens=counts.num_cached_tokens,
        num_generated_tokens=counts.num_generated_tokens,
        num_steps_of=tuple(steps.by_size),
        num_step_tokens=steps.num_tokens,
        last_step_s=steps.last_s,
        last_step_tokens=steps.last_tokens,
        num_failed=steps.num_failed,
        num_finished=counts.num_finished,
        is_paused=is_paused,
        sleep_level=sleep_level,
        adapters=counts.adapters,
        num_drafts=counts.drafts.num_drafts,
        num_draft_tokens=counts.drafts.num_draft_tokens,
        num_accepted_at=counts.drafts.num_accepted_at,
        experts=steps.experts,
    )
