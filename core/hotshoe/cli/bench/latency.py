"""`hotshoe bench latency`: one request alone, or a batch that starts together."""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotshoe.cli.bench.workload import add_workload_flags, fixed_length, random_prompts, run

if TYPE_CHECKING:
    from hotshoe.engine.api.llm import LLM


class Latency:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_workload_flags(parser, num_prompts=1)

    def run(self, args: Namespace) -> int:
        return run("latency", args, measure)


def measure(llm: LLM, args: Namespace, rng: random.Random) -> Mapping[str, float]:
    """Run one batch: time until all requests have a first token, and per token from there on."""
    prompts = random_prompts(llm, args, rng)
    params = fixed_length(args.output_len)
    waiting = {f"bench-{number}" for number in range(len(prompts))}
    begin = time.perf_counter()
    for request_id, prompt in zip(sorted(waiting), prompts, strict=True):
        llm.engine.add(request_id, prompt, params)
    first = 0.0
    while llm.engine.has_work():
        waiting.difference_update([output.request_id for output in llm.engine.step()])
        if not waiting and not first:
            first = time.perf_counter() - begin
    total = time.perf_counter() - begin
    result = {"first_token_ms": 1e3 * first, "total_s": total}
    if args.output_len > 1:
        result["ms_per_token"] = 1e3 * (total - first) / (args.output_len - 1)
    return result
