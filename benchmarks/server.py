"""`hotshoe serve` against a peer's server, and against Hotshoe without a server, in one sitting.

    python benchmarks/server.py MODEL_DIR [--peers CASES_DIR PEERS_DIR] [--runs 3]

Three questions, each by the same client (`hotshoe bench serve`) or the offline benchmarks:
`peer`: the same load on both servers, one after the other; `offline`: 32 requests at once over
HTTP and through `LLM.generate`; `added`: time per token of one stream, over HTTP and without.
CASES_DIR holds `vllm_env.sh`, PEERS_DIR the peer's environment. Ratios hold within a run alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
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
from collections.abc import Iterator, Sequence
from pathlib import Path

PORT = 8801
START_S = 400
STOP_S = 60
LIMITS = ("--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "32")
HOTSHOE = (sys.executable, "-m", "hotshoe.cli")
#: Prompts take token ids that every model here has.
IDS = ("--vocab-size", "31000")
LOADS = {
    "16 at a time": ("--max-concurrency", "16", "--num-prompts", "32"),
    "32 at a time": ("--max-concurrency", "32", "--num-prompts", "64"),
    "1 at a time": ("--max-concurrency", "1", "--num-prompts", "2"),
}
SIZES = ("--input-len", "256", "--output-len", "64")
SHOWN = ("requests_per_s", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99", "e2e_ms_p50")


def commands(args: Namespace) -> dict[str, list[str]]:
    """Return how each server is started."""
    place = ("--host", "127.0.0.1", "--port", str(PORT))
    model = str(args.model.resolve())
    found = {"hotshoe": [*HOTSHOE, "serve", model, *LIMITS, *place, *args.serve]}
    if args.peers:
        cases, peers = (path.resolve() for path in args.peers)
        script = (
            f"export PEERS={peers}; . {cases}/vllm_env.sh; "
            f'LD_PRELOAD=$TCM:$IOMP exec $V/vllm serve "$@"'
        )
        named = (model, "--served-model-name", "peer", *LIMITS, *place)
        found["peer"] = ["bash", "-c", script, "vllm", *named]
    return found


@contextlib.contextmanager
def serving(command: Sequence[str], log: Path) -> Iterator[None]:
    """Run a server while the context is open; say how long it took to answer."""
    begin = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=log.parent)
    try:
        while not _healthy():
            if process.poll() is not None or time.monotonic() - begin > START_S:
                sys.exit(f"the server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        say(f"  healthy after {time.monotonic() - begin:.1f} s")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _healthy() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2) as response:
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


def load(*words: str) -> dict[str, float]:
    """Put a load on the server that runs."""
    return bench("serve", "--base-url", f"http://127.0.0.1:{PORT}", *IDS, *words)


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each number over runs."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def ask_peer(args: Namespace, folder: Path) -> None:
    """Print the same loads on every server, and ratios."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, command in commands(args).items():
        say(f"== {name}")
        with serving(command, folder / f"{name}.log"):
            load(*SIZES, *LOADS["16 at a time"])  # warm
            found[name] = {
                title: medians([load(*SIZES, *words) for _ in range(args.runs)])
                for title, words in LOADS.items()
            }
    print("\n| load | server | " + " | ".join(SHOWN) + " |")
    print("|---" * (len(SHOWN) + 2) + "|")
    for title in LOADS:
        for name in found:
            row(title, name, [found[name][title][column] for column in SHOWN])
        if "peer" in found:
            ours, theirs = found["hotshoe"][title], found["peer"][title]
            row(title, "hotshoe ÷ peer", [ours[c] / theirs[c] for c in SHOWN])


def row(title: str, name: str, values: Sequence[float]) -> None:
    """Print a row of the table."""
    print(f"| {title} | {name} | " + " | ".join(f"{value:.4g}" for value in values) + " |")


def ask_offline(args: Namespace, folder: Path) -> None:
    """Print throughput over HTTP and without, in turns."""
    engine = (str(args.model.resolve()), *LIMITS)
    sizes = (*SIZES, "--num-prompts", "32")
    offline, online = [], []
    for _ in range(args.runs):
        once = ("--num-iters", "1", "--num-iters-warmup", "1")
        offline.append(bench("throughput", *engine, *sizes, *once))
        with serving(commands(args)["hotshoe"], folder / "offline.log"):
            online += [load(*sizes), load(*sizes)][1:]
    name = "output_tokens_per_s"
    without, over = medians(offline)[name], medians(online)[name]
    print(
        f"\n32 requests at once, {name}: without server {without:.1f}, over HTTP {over:.1f}, ",
        end="",
    )
    print(f"ratio {over / without:.3f}")


def ask_added(args: Namespace, folder: Path) -> None:
    """Print the time per token of one stream, over HTTP and without, in turns."""
    engine = (str(args.model.resolve()), *LIMITS)
    sizes = ("--input-len", "128", "--output-len", "128")
    offline, online = [], []
    for _ in range(args.runs):
        once = ("--num-iters", "2", "--num-iters-warmup", "1")
        offline.append(bench("latency", *engine, *sizes, *once)["ms_per_token"])
        with serving(commands(args)["hotshoe"], folder / "added.log"):
            words = ("--max-concurrency", "1", "--num-prompts", "2", "--num-warmups", "1")
            online.append(load(*sizes, *words)["tpot_ms_mean"])
    without, over = statistics.median(offline), statistics.median(online)
    print(
        f"\nOne stream, ms per token: without server {without:.2f}, over HTTP {over:.2f}, ", end=""
    )
    print(f"added {over - without:.2f}")


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
