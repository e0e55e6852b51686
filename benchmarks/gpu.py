"""Times one GPU on a model's dimensions with dummy weights, and prints a table.

    python benchmarks/gpu.py [--model NAME] [--cases a,b,d,i,c,e] [--repeats 3] [--json FILE]
                             [FIELD=VALUE ...]

NAME is a folder of `benchmarks/models`, by default Llama-3.1-8B.
a: one stream, 128 in and 256 out; b: prefill of 8,192 tokens; d: decode steps of 32, 128 and 256
sequences around a context of 1,024; i: the share of that time in which the device waits for the
host between steps, at 32 and 128; c: throughput of 512 x (1,024/128) and 256 x (128/512); e: from
process start to the first token, with kernels compiled before. Medians; random token ids, fixed
seed, prefix caching off, up to 256 sequences. FIELD=VALUE are fields of `EngineConfig`. Limits are
the device's measured copy rate and matrix rate, taken in the same run; s: the share of them that
cases a, b and d reach. Models of experts draw tokens at temperature 1, so that sequences choose
different ones. FILE is written anew after every case.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from limits import Model, read_model

MODELS = Path(__file__).parent / "models"
DEFAULTS = {"load_format": "dummy", "dtype": "bfloat16", "max_model_len": 10_240}


class Bench:
    """An engine and what was measured of it.

    Args:
        folder: Of the model.
        options: Fields of `EngineConfig`.
        repeats: Runs of each case; the median counts.
        results: Takes what is measured, by name.
    """

    def __init__(
        self, folder: Path, options: dict[str, Any], repeats: int, results: dict[str, Any]
    ) -> None:
        from hotshoe import LLM

        self.results = results
        self._repeats = repeats
        fixed = {"enable_prefix_caching": False, "skip_tokenizer_init": True, "max_num_seqs": 256}
        self.llm = LLM(str(folder), **{**DEFAULTS, **fixed, **options})
        self.model = read_model(folder, options.get("quantization", ""))
        self._random = random.Random(1234)

    def prompts(self, count: int, length: int) -> list[Any]:
        """Draw prompts of random token ids."""
        from hotshoe import TokensPrompt

        draw = self._random.randrange
        return [
            TokensPrompt([draw(10, self.model.vocab - 2000) for _ in range(length)])
            for _ in range(count)
        ]

    def sampling(self, num_tokens: int) -> Any:
        """Return parameters for exactly so many tokens."""
        from hotshoe import SamplingParams

        temperature = 1.0 if self.model.experts else 0.0
        return SamplingParams(
            temperature=temperature, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )

    def generate(self, prompts: list[Any], num_tokens: int) -> float:
        """Return the seconds that a batch takes."""
        begin = time.perf_counter()
        outputs = self.llm.generate(prompts, self.sampling(num_tokens))
        seconds = time.perf_counter() - begin
        assert all(len(o.outputs[0].token_ids) == num_tokens for o in outputs)
        return seconds

    def median(self, name: str, unit: str, run: Callable[[], float]) -> None:
        """Repeat a measurement and keep its median."""
        values = [run() for _ in range(self._repeats)]
        self.results[name] = {"median": statistics.median(values), "unit": unit, "all": values}
        print(f"{name:34} {statistics.median(values):12.3f} {unit}", flush=True)

    def one_stream(self) -> None:
        prompt = self.prompts(1, 128)

        def run() -> float:
            first, whole = self.generate(prompt, 1), self.generate(prompt, 256)
            return 1e3 * (whole - first) / 255

        self.median("a one stream 128/256", "ms/token", run)

    def prefill(self) -> None:
        self.median("b prefill 8192", "ms", lambda: 1e3 * self.generate(self.prompts(1, 8192), 1))

    def throughput(self) -> None:
        for count, length, out in ((512, 1024, 128), (256, 128, 512)):
            prompts = self.prompts(count, length)
            self.median(
                f"c {count} x ({length}/{out})",
                "tokens/s",
                lambda p=prompts, n=out, t=count * (length + out): t / self.generate(p, n),
            )

    def around_1024(self, batch: int) -> tuple[list[Any], int]:
        """Return prompts, and how many tokens of each make them pass a context of 1,024."""
        out = 256 + 2 * -(-batch * 896 // 8192)
        return self.prompts(batch, 1024 - out // 2), out

    def decode(self, batches: Sequence[int]) -> None:
        for batch in batches:
            prompts, out = self.around_1024(batch)
            self.median(
                f"d decode {batch} x 1024",
                "ms/step",
                lambda p=prompts, n=out: self._steady(p, n),
            )

    def idle(self, batches: Sequence[int]) -> None:
        """Measure how long the device waits for the host between steps that only decode."""
        import torch

        event = partial(torch.cuda.Event, enable_timing=True)
        worker = self.llm.engine.core.workers.main
        execute = worker.execute
        for batch in batches:

            def share(batch: int = batch) -> float:
                marks = Marks(event, batch)
                worker.execute = marks.around(execute)
                try:
                    self._steady(*self.around_1024(batch))
                finally:
                    worker.execute = execute
                return 100 * idle_share(marks.spans())

            self.median(f"i idle {batch} x 1024", "%", share)

    def _steady(self, prompts: list[Any], num_tokens: int) -> float:
        """Return the median time between steps in which every sequence gains a token."""
        engine = self.llm.engine
        for i, prompt in enumerate(prompts):
            engine.add(f"steady-{i}", prompt, self.sampling(num_tokens))
        stamps = []
        while engine.has_work():
            if len(engine.step()) == len(prompts):
                stamps.append(time.perf_counter())
        gaps = [b - a for a, b in itertools.pairwise(stamps)]
        assert len(gaps) > 200, "no steady stretch"
        return 1e3 * statistics.median(gaps)


class Marks:
    """Events down the device's stream, before and after each step's work.

    Args:
        event: Makes one that takes the time.
        num_tokens: Of the steps that count; others are in the way between two that do.
    """

    def __init__(self, event: Callable[[], Any], num_tokens: int) -> None:
        self._event, self._num_tokens = event, num_tokens
        self._marks: list[tuple[Any, Any] | None] = []

    def around(self, execute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the call that starts a step, with an event on either side of it."""

        def marked(plan: Any) -> Any:
            begin, end = self._event(), self._event()
            begin.record()
            step = execute(plan)
            end.record()
            self._marks.append((begin, end) if plan.num_tokens == self._num_tokens else None)
            return step

        return marked

    def spans(self) -> list[tuple[float, float]]:
        """Return begin and end, in ms, of the longest stretch of steps that count. Waits."""
        stretches = [[]]
        for pair in self._marks:
            if pair is None:
                stretches.append([])
            else:
                stretches[-1].append(pair)
        pairs = max(stretches, key=len)
        assert pairs, "no step has so many tokens"
        pairs[-1][1].synchronize()
        zero = pairs[0][0]
        return [(zero.elapsed_time(begin), zero.elapsed_time(end)) for begin, end in pairs]


def idle_share(spans: Sequence[tuple[float, float]]) -> float:
    """Return which part of the time, from the first begin to the last end, lies between spans.

    An event is done when all before it on the stream is: what the host starts late begins late,
    and what it starts in time begins where the last one ends.
    """
    gaps = [max(later[0] - earlier[1], 0.0) for earlier, later in itertools.pairwise(spans)]
    return sum(gaps) / (spans[-1][1] - spans[0][0])


def limits(model: Model, batches: Sequence[int]) -> dict[str, float]:
    """Measure what the device can do at most, and what that makes of each case."""
    import torch

    big = torch.randn(1 << 31, dtype=torch.bfloat16, device="cuda")
    square = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    other = torch.empty_like(big)
    read = 2 * big.nbytes / timed(lambda: other.copy_(big))
    flops = 2 * 8192**3 / timed(lambda: square @ square)
    found = {"copy_TB_s": read / 1e12, "matmul_TFLOP_s": flops / 1e12}
    for batch, context in ((1, 256), *((batch, 1024) for batch in batches)):
        nbytes = model.step_bytes(batch, context)
        found[f"step_{batch}_ms"] = 1e3 * nbytes / read
    # Products of one byte run at twice the rate; attention does not, which is left out here.
    times = 2 if model.weight_bits == 8 else 1
    found["prefill_8192_ms"] = 1e3 * model.prompt_flops(8192) / (flops * times)
    return found


def shares(results: dict[str, Any]) -> dict[str, Any]:
    """Return which part of the device's limit each case reached, in percent."""
    found = {}
    for name, limit in results["limits"].items():
        kind, _, size = name.removesuffix("_ms").partition("_")
        case = {"step": f"d decode {size} x 1024", "prefill": f"b prefill {size}"}.get(kind, "")
        case = "a one stream 128/256" if name == "step_1_ms" else case
        if case in results:
            percent = 100 * limit / results[case]["median"]
            found[f"s {case[2:]}"] = {"median": percent, "unit": "%"}
            print(f"{'s ' + case[2:]:34} {percent:12.1f} % of the device's limit")
    return found


def give_back() -> None:
    """Return to the device what PyTorch keeps of it."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def timed(run: Callable[[], object]) -> float:
    """Return the median seconds of one call on the device."""
    import torch

    for _ in range(3):
        run()
    seconds = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def startup(arguments: list[str], repeats: int) -> dict[str, Any]:
    """Return the median age of the first token of new processes, and the phases of each."""
    runs = [new_process(arguments) for _ in range(repeats)]
    totals = [run.pop("total_s") for run in runs]
    median = statistics.median(totals)
    print(f"{'e start to first token':34} {median:12.3f} s")
    return {"median": median, "unit": "s", "all": totals, "runs": runs}


def new_process(arguments: list[str]) -> dict[str, Any]:
    """Return the phases of a new process, and its first token's age."""
    begin = time.monotonic()
    command = [sys.executable, __file__, "--first-token", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    line = json.loads(done.stdout.splitlines()[-1])
    line["total_s"] = line.pop("first_token_at") - begin
    print(f"  {line['total_s']:.3f} s", json.dumps(line["phases"]), flush=True)
    return line


def first_token(folder: Path, options: dict[str, Any]) -> None:
    begin = time.monotonic()
    bench = Bench(folder, options, 1, {})
    bench.generate(bench.prompts(1, 16), 1)
    phases = {name: round(seconds, 2) for name, seconds in bench.llm.startup.items()}
    phases["python and imports before"] = round(begin - PROCESS_START, 2)
    print(json.dumps({"first_token_at": time.monotonic(), "phases": phases}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--cases", default="a,b,d,i,c,e")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="*", default=[32, 128, 256])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--first-token", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    options = {k: yaml.safe_load(v) for k, v in (s.split("=", 1) for s in args.settings)}
    folder = MODELS / args.model
    if args.first_token:
        first_token(folder, options)
        return
    cases = args.cases.split(",")
    results: dict[str, Any] = {"model": args.model, "options": options}
    bench = Bench(folder, options, args.repeats, results)
    print({name: round(s, 2) for name, s in bench.llm.startup.items()})
    for count, length, out in ((1, 128, 2), (1, 8192, 2), (256, 32, 16), (40, 1024, 8)):
        bench.generate(bench.prompts(count, length), out)  # every kernel has run once
    runs = {
        "a": bench.one_stream,
        "b": bench.prefill,
        "c": bench.throughput,
        "d": partial(bench.decode, args.batches),
        "i": partial(bench.idle, args.batches[:2]),
    }
    for case in cases:
        if case in runs:
            runs[case]()
            write(args.json, results)
    bench.llm.close()
    results["limits"] = limits(bench.model, args.batches)
    print({name: round(value, 3) for name, value in results["limits"].items()})
    results |= shares(results)
    write(args.json, results)
    if "e" in cases:  # every kernel has been compiled; the other process needs the memory
        give_back()
        results["e start to first token"] = startup(
            ["--model", args.model, *args.settings], args.repeats
        )
        write(args.json, results)


def write(path: Path | None, results: dict[str, Any]) -> None:
    """Keep what was found so far."""
    if path is not None:
        path.write_text(json.dumps(results, indent=1))


PROCESS_START = time.monotonic()

if __name__ == "__main__":
    main()
