"""Decode steps recorded and as they are, by turns in one engine: where a CPU's time goes.

    python benchmarks/recorded.py CONFIG... --streams 1 8

Each CONFIG is a folder with a config.json; weights are random. Prints medians over turns: wall time
and processor time of a step either way, and how much of the processor time as it is lies between
kernels: all that a replay of the same step does not take, of the thread that steps. Answers of
both ways are compared first.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from torch import Tensor

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe_cpu.graph import RECORDED_AT, Graph

PROMPT, TURN, SKIPPED = 16, 16, 2 * RECORDED_AT


class Switch:
    """Runs recorded steps as they are while `plain` holds, and adds up the time of replays."""

    def __init__(self) -> None:
        self.plain = False
        self.replay_s = 0.0
        self.recorded = True
        record, switch = Graph.record, self

        def choosing(graph: Graph, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
            step = record(graph, function)

            def chosen() -> Tensor:
                began = time.thread_time()
                try:
                    return function() if switch.plain else step()
                finally:
                    switch.replay_s += time.thread_time() - began

            return chosen

        Graph.record = choosing  # type: ignore[method-assign]


def turns(llm: LLM, switch: Switch, streams: int, count: int) -> dict[bool, list[list[float]]]:
    """Return wall, processor and model time of a step, in ms, of every turn, by how it ran."""
    engine, draw = llm.engine, random.Random(0)
    params = SamplingParams(max_tokens=PROMPT + SKIPPED + 2 * count * TURN, ignore_eos=True)
    names = [f"{streams}-{number}" for number in range(streams)]
    for name in names:
        engine.add(name, TokensPrompt([draw.randrange(10, 9000) for _ in range(PROMPT)]), params)
    switch.plain = False
    for _ in range(SKIPPED):
        engine.step()
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    for turn in range(2 * count):
        switch.plain, switch.replay_s = bool(turn % 2), 0.0
        began = time.perf_counter(), time.process_time()
        for _ in range(TURN):
            engine.step()
        ended = time.perf_counter(), time.process_time()
        spent = (ended[0] - began[0], ended[1] - began[1], switch.replay_s)
        found[switch.plain].append([x / TURN * 1e3 for x in spent])
    for name in names:
        engine.abort(name)
    while engine.has_work():
        engine.step()
    return found


def equal(llm: LLM, switch: Switch) -> bool:
    """Return whether greedy answers are the same either way."""
    draw = random.Random(1)
    prompts = [TokensPrompt([draw.randrange(10, 9000) for _ in range(9)]) for _ in range(3)]
    params = SamplingParams(max_tokens=3 * RECORDED_AT, temperature=0.0, ignore_eos=True)
    answers = []
    for switch.plain in (True, False):
        answers.append([x.outputs[0].token_ids for x in llm.generate(prompts, params)])
    return answers[0] == answers[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", metavar="CONFIG")
    parser.add_argument("--streams", type=int, nargs="*", default=[1])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    switch = Switch()
    for model in args.models:
        llm = LLM(
            model,
            platform="cpu",
            platform_options={"threads": args.threads},
            load_format="dummy",
            skip_tokenizer_init=True,
            max_num_seqs=max(3, *args.streams),
            max_model_len=1024,
            enable_prefix_caching=False,
        )
        same = equal(llm, switch)
        for streams in args.streams:
            found = turns(llm, switch, streams, args.turns)
            (wall, cpu, kernels), (wall0, cpu0, model0) = (
                [statistics.median(column) for column in zip(*found[plain], strict=True)]
                for plain in (False, True)
            )
            print(
                f"{model} x {streams}: wall {wall0:.2f} -> {wall:.2f} ms ({wall / wall0:.3f}), "
                f"processor {cpu0:.2f} -> {cpu:.2f} ({cpu / cpu0:.3f}); between kernels "
                f"{model0 - kernels:.2f} ms, {(model0 - kernels) / cpu0:.1%} of a step as it is; "
                f"around the model {cpu - kernels:.2f} ms; answers equal: {same}",
                flush=True,
            )
        llm.close()


if __name__ == "__main__":
    main()
