"""`hotshoe bench latency`: one request alone, or a batch that starts together."""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from hotshoe.cli.bench.workload import (
    add_workload_flags,
    fixed_length,
    iterate,
    open_for,
    random_prompts,
    report,
)

if TYPE_CHECKING:
    from hotshoe.engine.llm import LLM


class Latency:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_workload_flags(parser, num_prompts=1)

    def run(self, args: Namespace) -> int:
        with open_for(args) as llm:
            rng = random.Random(llm.config.seed)
            iterations = iterate(args, lambda: measure(llm, args, rng))
            report("latency", args, asdict(llm.config), iterations)
        return 0


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
