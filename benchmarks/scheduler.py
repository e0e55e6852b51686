"""Time the scheduler's and the cache's bookkeeping for steps in which every request decodes.

Prints the median microseconds of `schedule` plus `update` by number of running requests and of
cache groups, of which all but the first keep a window. Numbers of groups take turns, so that a
busy machine slows all alike. No model runs: the results of steps are made up. Uses one core:

    python benchmarks/scheduler.py
"""

import argparse
import statistics
import time
from collections import deque

from hotshoe.scheduler import Request, Scheduler, SchedulerConfig
from hotshoe.types import CacheGroup, CacheSpec, SamplingParams, StepPlan, StepResult
from hotshoe.types.cache import full_group, held_blocks

PROMPT_TOKENS = 100
BLOCK_SIZE = 16
WINDOW = 64
TURNS = 5


def groups_of(count: int) -> tuple[CacheGroup, ...]:
    """Return one group that keeps every token, and others that keep a window, in one pool."""
    window = CacheSpec("window", BLOCK_SIZE, (), WINDOW)
    return (full_group(BLOCK_SIZE), *[CacheGroup(window, ())] * (count - 1))


def measure(
    num_requests: int, num_steps: int, in_flight: int, num_groups: int
) -> tuple[float, float]:
    """Return the median microseconds of `schedule` and of `update`."""
    max_model_len = PROMPT_TOKENS + num_steps + 16
    groups, step_tokens = groups_of(num_groups), num_requests * PROMPT_TOKENS
    blocks = sum(held_blocks(group.spec, max_model_len, step_tokens) + 2 for group in groups)
    config = SchedulerConfig(
        max_num_seqs=num_requests,
        max_num_batched_tokens=step_tokens,  # All prompts in the first step.
        max_model_len=max_model_len,
        num_blocks=num_requests * blocks,
        groups=groups,
        block_size=BLOCK_SIZE,
        max_in_flight_steps=in_flight,
    )
    scheduler = Scheduler(config)
    params = SamplingParams(max_tokens=None)
    for i in range(num_requests):
        # Lengths differ, so that block boundaries are spread evenly over the steps.
        prompt = [i, *range(1, PROMPT_TOKENS - i % BLOCK_SIZE)]
        scheduler.add(Request(f"request-{i}", prompt, params, eos_token_ids=frozenset({0})))
    plans: deque[StepPlan] = deque()
    schedule_ns, update_ns = [], []
    for _ in range(num_steps):
        started = time.perf_counter_ns()
        plan = scheduler.schedule()
        schedule_ns.append(time.perf_counter_ns() - started)
        assert plan is not None and len(plan.rows) == num_requests
        plans.append(plan)
        if len(plans) == in_flight:
            oldest = plans.popleft()
            result = StepResult(
                oldest.step_id, list(oldest.rows), [[7] for _ in range(num_requests)]
            )
            started = time.perf_counter_ns()
            scheduler.update(oldest, result)
            update_ns.append(time.perf_counter_ns() - started)
    # The first steps compute the prompts.
    return statistics.median(schedule_ns[4:]) / 1e3, statistics.median(update_ns[4:]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the scheduler's bookkeeping.")
    parser.add_argument("--num-running", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--num-steps", type=int, default=1000)
    parser.add_argument("--num-groups", type=int, nargs="+", default=[1, 4])
    args = parser.parse_args()
    first = args.num_groups[0]
    print(
        f"{'running':>8}{'in flight':>11}{'groups':>8}{'schedule us':>13}{'update us':>11}"
        f"{'total us':>10}{f'of {first}':>8}"
    )
    for num_running in args.num_running:
        for in_flight in (1, 2):
            found: dict[int, list[tuple[float, float]]] = {n: [] for n in args.num_groups}
            for _ in range(TURNS):
                for groups, times in found.items():
                    times.append(measure(num_running, args.num_steps // TURNS, in_flight, groups))
            least = {n: min(times, key=sum) for n, times in found.items()}
            for groups, (schedule, update) in least.items():
                total = schedule + update
                print(
                    f"{num_running:8}{in_flight:11}{groups:8}{schedule:13.1f}{update:11.1f}"
                    f"{total:10.1f}{total / sum(least[first]):8.2f}"
                )


if __name__ == "__main__":
    main()
