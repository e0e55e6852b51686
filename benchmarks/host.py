"""What Python does for a step beside the model: processor time by part, no kernel computed.

    OMP_NUM_THREADS=1 python benchmarks/host.py --streams 1 32 128 512

Prints medians in microseconds: of a prompt from the call that adds its request to its first token,
and of steps that decode so many sequences. Results of the model and of its recordings are kept
from their first call, so that what remains is the host's. What a part calls of another part counts
for that one alone. The clock is read twice for each call of a part, a microsecond or two.
Compare two checkouts by turns: a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.engine.api.inputs import InputProcessor
from hotshoe.engine.core.engine_core import EngineCore
from hotshoe.runner.forward import Forward
from hotshoe.runner.graphs import Recordings
from hotshoe.runner.inbox import Inbox
from hotshoe.runner.rows import Rows
from hotshoe.runner.runner import Runner
from hotshoe.runner.running import RunningStep, Steps
from hotshoe.sampling.recorded import RecordedSampling
from hotshoe.sampling.sampler import Sampler
from hotshoe.scheduler import Scheduler
from hotshoe.text.output_processor import OutputProcessor

#: Methods whose time is told, by the name under which it is.
PARTS: dict[str, tuple[type, str]] = {
    "check prompt": (InputProcessor, "prepare"),
    "add": (EngineCore, "add"),
    "expect": (OutputProcessor, "add"),
    "core": (EngineCore, "step"),
    "schedule": (Scheduler, "schedule"),
    "execute": (Steps, "__call__"),
    "rows": (Rows, "advance"),
    "stage": (Runner, "_stage"),
    "inbox": (Inbox, "stage"),
    "views": (Forward, "read"),
    "forward": (Forward, "__call__"),
    "set row": (Sampler, "set_row"),
    "sample": (Sampler, "__call__"),
    "recorded sampling": (RecordedSampling, "begin"),
    "put": (Runner, "_put"),
    "end": (Runner, "_end"),
    "result": (RunningStep, "result"),
    "update": (Scheduler, "update"),
    "text": (OutputProcessor, "process"),
}
STEPS, SKIPPED = 90, 20
PROMPT_TOKENS = 16


class Meter:
    """Adds up the time of parts."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = defaultdict(int)
        self._inner: list[int] = []

    def watch(self, name: str, owner: type, method: str) -> None:
        """Measure every call of a method from now on."""
        function: Callable[..., Any] = getattr(owner, method)

        def measured(*args: Any, **more: Any) -> Any:
            self._inner.append(0)
            begin = time.thread_time_ns()
            try:
                return function(*args, **more)
            finally:
                taken = time.thread_time_ns() - begin
                self.spent_ns[name] += taken - self._inner.pop()
                if self._inner:
                    self._inner[-1] += taken

        setattr(owner, method, measured)

    def of(self, work: Callable[[], object]) -> dict[str, int]:
        """Return the nanoseconds of each part in a piece of work."""
        self.spent_ns.clear()
        work()
        return dict(self.spent_ns)


def hollow() -> None:
    """Compute nothing twice: the model's numbers stay those of the first step of a size."""
    kept: dict[object, torch.Tensor] = {}
    replay = Recordings.replay

    def forward(self: Any, inputs: Any, staged: Any, every: bool, **_: Any) -> torch.Tensor:
        count = inputs.num_tokens if every else len(staged.sample_at)
        self.read(inputs, staged)
        return kept.setdefault(count, torch.zeros(count, self._model.hidden_size))

    def logits(self: Any, hidden: torch.Tensor, row: int | None = None) -> torch.Tensor:
        key = "logits", len(hidden)
        if key not in kept:
            kept[key] = torch.randn(len(hidden), self._model.vocab_size)
        return kept[key]

    def replayed(self: Recordings, size: int) -> torch.Tensor:
        if (id(self), size) not in kept:
            kept[id(self), size] = replay(self, size)
        return kept[id(self), size]

    for owner, name, function in (
        (Forward, "__call__", forward),
        (Forward, "logits", logits),
        (Recordings, "replay", replayed),
    ):
        setattr(owner, name, function)


def report(what: str, found: list[dict[str, int]]) -> None:
    """Print medians, the longest part first."""
    parts = {name: statistics.median(x.get(name, 0) for x in found) / 1e3 for name in PARTS}
    total = statistics.median(sum(x.values()) for x in found) / 1e3
    ordered = sorted(parts.items(), key=lambda pair: -pair[1])
    told = ", ".join(f"{name} {micros:.1f}" for name, micros in ordered if micros)
    print(f"{what}: {total:.0f} us ({told})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 32, 128, 512])
    args = parser.parse_args()
    hollow()
    meter = Meter()
    for name, (owner, method) in PARTS.items():
        meter.watch(name, owner, method)
    limits = {"max_num_seqs": max(1, *args.streams), "max_model_len": args.prompt + 256}
    engine = LLM(args.model, **limits).engine
    params = SamplingParams(temperature=0.0, max_tokens=2 * STEPS, ignore_eos=True)
    names = (f"request-{number}" for number in itertools.count())
    draw = random.Random(0)

    def prompts(count: int, length: int) -> Iterator[tuple[str, TokensPrompt]]:
        for name in itertools.islice(names, count):
            yield name, TokensPrompt([draw.randrange(10, 2000) for _ in range(length)])

    def drop(started: list[str]) -> None:
        for name in started:
            engine.abort(name)
        while engine.has_work():
            engine.step()

    found = []
    for name, prompt in prompts(STEPS, args.prompt):

        def first(name: str = name, prompt: TokensPrompt = prompt) -> None:
            engine.add(name, prompt, params)
            engine.step()

        found.append(meter.of(first))
        drop([name])
    report(f"a prompt of {args.prompt}", found[SKIPPED:])
    for count in args.streams:
        started = []
        for name, prompt in prompts(count, PROMPT_TOKENS):
            engine.add(name, prompt, params)
            started.append(name)
        while engine.core.stats().num_waiting:
            engine.step()
        found = [meter.of(engine.step) for _ in range(STEPS)]
        report(f"a step of {count}", found[SKIPPED:])
        drop(started)


if __name__ == "__main__":
    main()
