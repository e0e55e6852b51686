"""`hotshoe serve` against a peer's server, and against Hotshoe without a server, in one sitting.

    python benchmarks/server.py MODEL_DIR [--peers CASES_DIR PEERS_DIR] [--runs 3]

Three questions, each by the same client (`hotshoe bench serve`) or the offline benchmarks:
`peer`: the same load on both servers; `offline`: 32 requests at once over HTTP and through
`LLM.generate`; `added`: time per token of one stream, over HTTP and without. What is compared is up
at the same time and measured by turns, since a machine's speed drifts; it idles while it waits.
CASES_DIR holds `vllm_env.sh`, PEERS_DIR the peer's environment. Ratios hold within a run alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hotshoe import LLM, SamplingParams, TokensPrompt

PORTS = {"hotshoe": 8801, "peer": 8802}
START_S = 400
STOP_S = 60
LIMITS = ("--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "32")
#: The cache is used up once before anything is measured: memory that a process writes for the first
#: time has to be found by the system, and the peer does that when it starts.
CACHE = ("--kv-cache-memory-bytes", str(1200 << 20))
WARM = ("--max-concurrency", "16", "--num-prompts", "48")
HOTSHOE = (sys.executable, "-m", "hotshoe.cli")
#: Prompts take token ids that every model here has.
IDS = ("--vocab-size", "31000")
LOADS = {
    "16 at a time": ("--max-concurrency", "16", "--num-prompts", "32"),
    "32 at a time": ("--max-concurrency", "32", "--num-prompts", "64"),
    "1 at a time": ("--max-concurrency", "1", "--num-prompts", "2"),
}
SIZES = ("--input-len", "256", "--output-len", "64")
NO_WARMUP = ("--num-warmups", "0")
SHOWN = ("requests_per_s", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99", "e2e_ms_p50")


def command(name: str, args: Namespace) -> list[str]:
    """Return how a server is started."""
    model = str(args.model.resolve())
    place = ("--host", "127.0.0.1", "--port", str(PORTS[name]))
    if name == "hotshoe":
        return [*HOTSHOE, "serve", model, *LIMITS, *CACHE, *place, *args.serve]
    cases, peers = (path.resolve() for path in args.peers)
    script = (
        f"export PEERS={peers}; . {cases}/vllm_env.sh; "
        f'LD_PRELOAD=$TCM:$IOMP exec $V/vllm serve "$@"'
    )
    return ["bash", "-c", script, "vllm", model, "--served-model-name", "peer", *LIMITS, *place]


@contextlib.contextmanager
def serving(name: str, args: Namespace, folder: Path) -> Iterator[None]:
    """Run a server while the context is open; say how long it took to answer."""
    if _healthy(name):
        sys.exit(f"port {PORTS[name]} has a server already; stop it first")
    begin = time.monotonic()
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command(name, args), stdout=file, stderr=file, cwd=folder)
    try:
        while not _healthy(name):
            if process.poll() is not None or time.monotonic() - begin > START_S:
                sys.exit(f"the server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        say(f"{name} is healthy after {time.monotonic() - begin:.1f} s")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _healthy(name: str) -> bool:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{PORTS[name]}/health", timeout=2
        ) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def bench(*words: str) -> dict[str, float]:
    """Run a benchmark command and return its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.json"
        command = [*HOTSHOE, "bench", *words, "--output-json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = json.loads(path.read_text())
    numbers: dict[str, float] = found.get("summary") or found["median"]
    assert not numbers.get("num_failed"), found["failures"]
    return numbers


def load(name: str, *words: str) -> dict[str, float]:
    """Put a load on a server."""
    return bench("serve", "--base-url", f"http://127.0.0.1:{PORTS[name]}", *IDS, *words)


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each number over runs."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def ask_peer(args: Namespace, folder: Path) -> None:
    """Print the same loads on every server, and ratios."""
    names = list(PORTS) if args.peers else ["hotshoe"]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(serving(name, args, folder))
            load(name, *SIZES, *WARM)
        print("\n| load | server | " + " | ".join(SHOWN) + " |")
        print("|---" * (len(SHOWN) + 2) + "|")
        for title, words in LOADS.items():
            turns = [{name: load(name, *SIZES, *words) for name in names} for _ in range(args.runs)]
            found = {name: medians([turn[name] for turn in turns]) for name in names}
            for name, numbers in found.items():
                row(title, name, [numbers[column] for column in SHOWN])
            if "peer" in found:
                ours, theirs = found.values()
                row(title, "hotshoe ÷ peer", [ours[c] / theirs[c] for c in SHOWN])


def row(title: str, name: str, values: Sequence[float]) -> None:
    """Print a row of the table."""
    print(f"| {title} | {name} | " + " | ".join(f"{value:.4g}" for value in values) + " |")


def ask_offline(args: Namespace, folder: Path) -> None:
    """Print throughput over HTTP and without."""
    num, (length, output) = 32, (int(SIZES[1]), int(SIZES[3]))

    def without(llm: LLM) -> float:
        begin = time.perf_counter()
        llm.generate(prompts(num, length), fixed(output))
        return num * output / (time.perf_counter() - begin)

    def over() -> float:
        return load("hotshoe", *SIZES, "--num-prompts", str(num), *NO_WARMUP)["output_tokens_per_s"]

    pairs = taken_in_turns(args, folder, without, over)
    print("\n32 requests at once, output tokens per second: " + compared(pairs), end="; ")
    print(f"median ratio {statistics.median(over / offline for offline, over in pairs):.3f}")


def ask_added(args: Namespace, folder: Path) -> None:
    """Print the time per token of one stream, over HTTP and without."""
    length, output = 128, 128
    sizes = ("--input-len", str(length), "--output-len", str(output))

    def without(llm: LLM) -> float:
        times = [time.perf_counter() for _ in llm.stream(*prompts(1, length), fixed(output))]
        return 1e3 * (times[-1] - times[0]) / (output - 1)

    def over() -> float:
        return load("hotshoe", *sizes, "--num-prompts", "1", *NO_WARMUP)["tpot_ms_mean"]

    pairs = taken_in_turns(args, folder, without, over)
    print("\nOne stream, ms per token: " + compared(pairs), end="; ")
    print(f"median added {statistics.median(over - offline for offline, over in pairs):.2f}")


def taken_in_turns(
    args: Namespace,
    folder: Path,
    without: Callable[[LLM], float],
    over: Callable[[], float],
) -> list[tuple[float, float]]:
    """Measure without a server and over HTTP by turns: a machine's speed drifts meanwhile."""
    words = (*LIMITS, *CACHE)
    flags = dict(zip(words[::2], words[1::2], strict=True))
    options = {
        name.removeprefix("--").replace("-", "_"): int(value) if value.isdigit() else value
        for name, value in flags.items()
    }
    with (
        serving("hotshoe", args, folder),
        LLM(str(args.model.resolve()), **options) as llm,
    ):
        load("hotshoe", *SIZES, *WARM)
        llm.generate(prompts(48, int(SIZES[1])), fixed(int(SIZES[3])))
        return [(without(llm), over()) for _ in range(args.turns)]


def prompts(num: int, length: int) -> list[TokensPrompt]:
    """Return random prompts."""
    return [
        TokensPrompt([random.randrange(10, int(IDS[1])) for _ in range(length)]) for _ in range(num)
    ]


def fixed(length: int) -> SamplingParams:
    """Return what makes every output so long."""
    return SamplingParams(max_tokens=length, ignore_eos=True, temperature=0.0)


def compared(pairs: Sequence[tuple[float, float]]) -> str:
    """Return both medians in words."""
    offline, online = zip(*pairs, strict=True)
    without, over = statistics.median(offline), statistics.median(online)
    return f"without server {without:.2f}, over HTTP {over:.2f}, {len(pairs)} turns"


QUESTIONS = {"peer": ask_peer, "offline": ask_offline, "added": ask_added}


def say(line: str) -> None:
    """Print progress."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peers", type=Path, nargs=2, metavar=("CASES_DIR", "PEERS_DIR"))
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=7, help="of the questions about HTTP")
    parser.add_argument(
        "--serve", type=shlex.split, default=[], help="further flags of hotshoe serve, as one word"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for question in args.questions:
            QUESTIONS[question](args, Path(folder))
    print(f"\n{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
