"""`hotshoe bench throughput`: many requests at once, tokens per second over all of them."""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotshoe.cli.bench.workload import add_workload_flags, fixed_length, random_prompts, run

if TYPE_CHECKING:
    from hotshoe.engine.api.llm import LLM


class Throughput:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_workload_flags(parser, num_prompts=32)

    def run(self, args: Namespace) -> int:
        return run("throughput", args, measure)


def measure(llm: LLM, args: Namespace, rng: random.Random) -> Mapping[str, float]:
    """Run one batch to its end."""
    prompts = random_prompts(llm, args, rng)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, fixed_length(args.output_len))
    seconds = time.perf_counter() - begin
    generated = sum(len(sequence.token_ids) for o in outputs for sequence in o.outputs)
    read = args.num_prompts * args.input_len
    return {
        "total_s": seconds,
        "requests_per_s": args.num_prompts / seconds,
        "output_tokens_per_s": generated / seconds,
        "tokens_per_s": (read + generated) / seconds,
    }
