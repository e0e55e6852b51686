"""Proves and times everything on one H200 in one call, in under ten minutes.

    python3 tools/h200.py --out DIR [--only NAME ...] [--budget-s 570] [--repeats 3] [--dry-run]

Nothing need be installed: distributions are found in the tree. First the checks, side by side, as
most of their time goes into compiling: kernels' and engine's tests, transformers' tokens, the
conformance kit, sanitizers. A failed test of the engine is repeated in a process of its own. Then,
alone, what is timed. Every part has a limit, and a part that fails stops no other. DIR gets
`report.md`, `report.json`, `failures.txt` (each failure with its whole cause) and `logs.txt`, anew
after every part, so that a call that is cut short leaves what was found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
#: Whatever else is installed there; what hangs shows its stacks.
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark"]
PYTEST += ["-o", "junit_logging=out-err", "-o", "faulthandler_timeout=100"]
TRITON, CUDA = "tests/platforms/triton", "tests/platforms/cuda"
TOKENS = "tests/plugins/models/test_end_to_end.py"
#: Of adapters, drafts of further layers, and files of GGUF and MLX.
FURTHER = [
    f"tests/plugins/{name}.py"
    for name in (
        *("models/test_adapted", "models/test_adapted_latents", "models/test_further_drafts"),
        *(f"models/gguf/test_{kind}" for kind in ("dense", "mixtures", "hybrids", "latents")),
        "quantization/test_mlx",
    )
]
#: Freed and taken anew each time, so that sanitizers see where memory ends.
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
#: What is kept of one log, and of one failure.
LOG_BYTES, FAILURE_CHARACTERS = 512 << 10, 20_000
#: Seconds that a part has to write what it knows, once it is told to stop.
STOP_S = 8


@dataclass(frozen=True)
class Part:
    """One thing to prove: a command, and how long it may take.

    Attributes:
        tests: Arguments of pytest; empty for another command.
        tool: A sanitizer and its options, under which the first case of every test runs.
        alone: Failed tests are repeated in processes of their own: they may lack memory that
            others hold.
    """

    name: str
    limit_s: int
    tests: Sequence[str] = ()
    command: Sequence[str] = ()
    tool: Sequence[str] = ()
    alone: bool = False


#: Sanitized are the kernels that have tests of their own.
ROWS = ("norm", "activation", "embedding", "quantize", "rotary", "sampling")
PRODUCTS = ("attention", "linear", "invariant", "moe")
#: Kernels for these GPUs alone.
OWN = [f"{CUDA}/test_{name}.py" for name in ("attention", "linear")]
RACING = ("attention", "linear", "sampling")
MEMCHECK = ("--tool", "memcheck", "--error-exitcode", "9")
RACECHECK = ("--tool", "racecheck", "--error-exitcode", "9")


def files(names: Iterable[str]) -> list[str]:
    """Return the test files of kernels."""
    return [f"{TRITON}/test_{name}.py" for name in names]


def without(files: Iterable[str]) -> list[str]:
    """Return the options that leave test files out."""
    return [f"--ignore={file}" for file in files]


CHECKS = (
    # Cross-compilation needs no GPU.
    Part("kernels", 240, [TRITON, "-n", "6", *without([f"{TRITON}/test_matrix.py"])], alone=True),
    Part("engine", 300, [CUDA, "-v", "-m", "not slow", *without(OWN)], alone=True),
    Part("own kernels", 240, [*OWN, "-v"], alone=True),
    Part("tokens", 240, [TOKENS, "-k", "cuda and chunks", "-n", "6"]),
    Part("further tokens", 300, [*FURTHER, "-m", "not slow", "-n", "6"]),
    Part("rounded tokens", 240, [TOKENS, "-k", "cuda and not chunks", "-n", "6"]),
    Part(
        "conformance",
        260,
        # What is left over by then is said.
        command="-m hotshoe.cli conformance --platform cuda --quick --time-limit 220".split(),
    ),
    Part("memcheck rows", 260, files(ROWS), tool=MEMCHECK),
    Part("memcheck products", 260, [*files(PRODUCTS), *OWN], tool=MEMCHECK),
    Part("racecheck", 200, files(RACING), tool=RACECHECK),
)
#: Name: limit, what the peer reaches, the bar; "" where there is none. See `better`.
BF16 = {
    "a one stream 128/256": (3.45, 4.90, 4.4),
    "d decode 32 x 1024": (4.42, 6.28, 5.8),
    "d decode 128 x 1024": (7.38, 10.47, 9.8),
    "d decode 256 x 1024": (11.31, 17.44, 16.0),
    "b prefill 8192": (174, 212, 212),
    "i idle 32 x 1024": ("", "", 3),
    "i idle 128 x 1024": ("", "", 3),
    "c 512 x (1024/128)": ("", 35_567, 36_500),
    "c 256 x (128/512)": ("", 23_246, 24_500),
    "e start to first token": ("", 33.2, 12),
}
FP8 = {
    "a one stream 128/256": (1.85, 3.49, 3.49),
    "d decode 32 x 1024": (2.82, 5.27, 5.27),
    "d decode 128 x 1024": (5.78, 8.75, 8.75),
    "d decode 256 x 1024": (9.71, 15.07, 15.07),
    "b prefill 8192": (92, 145, 145),
    "c 512 x (1024/128)": ("", 50_756, 50_756),
    "c 256 x (128/512)": ("", 29_243, 29_243),
}
BLOCK_BARS = {"a one stream 128/256": 2.6, "d decode 256 x 1024": 13.0, "b prefill 8192": 125}
FP8_BLOCK = {case: (FP8[case][0], "", bar) for case, bar in BLOCK_BARS.items()}
#: Qwen3-30B-A3B, routed as with real weights: tokens are drawn at temperature 1.
EXPERTS = {
    "a one stream 128/256": (1.39, 4.16, 2.4),
    "d decode 32 x 1024": (12.9, 16.4, 15.5),
    "d decode 128 x 1024": (16.8, 21.3, 20.0),
    "d decode 256 x 1024": (19.7, 26.5, 25.0),
    "b prefill 8192": (94, 154, 150),
    "c 512 x (1024/128)": ("", 42_478, 44_000),
    "e start to first token": ("", 33.5, 12),
}
#: 8B with weights of four bits by groups of 128, as AWQ writes them; the limit as for bfloat16.
W4A16 = {
    "a one stream 128/256": (1.12, "", 1.9),
    "d decode 32 x 1024": (2.1, "", 3.6),
    "d decode 128 x 1024": ("", "", 9.6),
    "b prefill 8192": (174, "", 212),
}
Table = Mapping[str, tuple[float | str, float | str, float]]
#: Name: table, cases of `benchmarks/gpu.py`, options, limit in seconds.
BENCHES: dict[str, tuple[Table, str, list[str], int]] = {
    "bf16": (BF16, "a,d,b,i,c,e", ["platform=cuda"], 260),
    "fp8": (FP8, "a,d,b,c", ["platform=cuda", "quantization=fp8"], 200),
    "fp8_block": (FP8_BLOCK, "a,d,b", ["platform=cuda", "quantization=fp8_block"], 200),
    "w4a16": (W4A16, "a,d,b", ["--model", "llama-3.1-8b-w4a16", "platform=cuda"], 200),
    "experts": (EXPERTS, "a,d,b,c,e", ["--model", "qwen3-30b-a3b", "platform=cuda"], 400),
}


def of_limit(stream: int) -> Table:
    """Return the bars of a dense shape, in percent of what the same run found possible."""
    cases = {"one stream 128/256": stream, "decode 32 x 1024": 82, "decode 128 x 1024": 82}
    return {f"s {case}": (100, "", bar) for case, bar in {**cases, "prefill 8192": 82}.items()}


#: Dense shapes of five families, for which nothing is tuned, and the bar of their one stream.
SHAPES = {
    "qwen2.5-0.5b": 60,
    "llama-3.2-1b": 72,
    "phi-3-mini": 85,
    "qwen3-4b": 85,
    "qwen2.5-7b": 85,
    "gemma-2-9b": 85,
    "qwen3-14b": 85,
    "mistral-small-24b": 85,
}
for _shape, _stream in SHAPES.items():
    _settings = ["--model", _shape, "--batches", "32", "128", "--", "platform=cuda"]
    BENCHES[f"shape-{_shape}"] = (of_limit(_stream), "a,d,b", _settings, 200)
#: A word for several parts. These are asked for by name, and others.
GROUPS = {"shapes": [name for name in BENCHES if name.startswith("shape-")]}
UNASKED = {"w4a16", "fp8_block", "experts", *GROUPS["shapes"]}
NAMES = [part.name for part in CHECKS] + list(BENCHES)


@dataclass
class Outcome:
    """What became of a part.

    Attributes:
        counts: Tests by outcome.
        failures: Each failed test's name and whole text.
        note: What else the report should say in a few words.
    """

    name: str
    verdict: str = "not run"
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    note: str = ""


class Prover:
    """Runs parts within the time that is left, and writes what they find.

    Args:
        out: Where reports go.
        budget_s: Seconds for everything.
        names: Of the parts that are wanted.
    """

    def __init__(self, out: Path, budget_s: float, names: Iterable[str] = ()) -> None:
        self._out, self._end = out, time.monotonic() + budget_s
        self._work = Path(tempfile.mkdtemp(prefix="h200-"))
        self._environment = os.environ | {"PYTHONPATH": search_path(self._work / "site")}
        self._writing = Lock()
        self.outcomes = {name: Outcome(name) for name in names}
        self.measured: dict[str, dict[str, object]] = {}

    def run(
        self, name: str, command: Sequence[str], limit_s: float, extra: Mapping[str, str] = {}
    ) -> tuple[str, float]:
        """Run Python, or a sanitizer over it, and return the verdict and the seconds taken."""
        begin = time.monotonic()
        limit_s = min(limit_s, self._end - begin)
        if limit_s < 5:
            return "no time left", 0.0
        with self.log(name).open("wb") as log:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=self._environment | extra,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                return f"not here: {error.filename}", 0.0
            try:
                code = process.wait(limit_s)
                verdict = "ok" if code == 0 else f"failed ({code})"
            except subprocess.TimeoutExpired:
                stop(process)
                verdict = f"stopped after {limit_s:.0f} s"
        return verdict, time.monotonic() - begin

    def log(self, name: str) -> Path:
        return self._work / f"{name}.log"

    def check(self, part: Part) -> None:
        """Run a part of the checks."""
        self._attempt(part.name, partial(self._check, part))

    def time(self, name: str, repeats: int) -> None:
        """Time one configuration."""
        self._attempt(name, partial(self._time, name, repeats))

    def _attempt(self, name: str, work: Callable[[Outcome], None]) -> None:
        """Do a part; what goes wrong in it is its own."""
        outcome = self.outcomes[name]
        try:
            work(outcome)
        except Exception:
            outcome.verdict = "broke off"
            outcome.failures[name] = traceback.format_exc()
        self.write()

    def _check(self, part: Part, outcome: Outcome) -> None:
        record, found = self._work / f"{part.name}.record", self._work / f"{part.name}.xml"
        record.touch()
        command = command_of(part, record, found, self._environment)
        extra = UNCACHED if part.tool else {}
        outcome.verdict, outcome.seconds = self.run(part.name, command, part.limit_s, extra)
        outcome.counts, outcome.failures = read_results(found)
        if outcome.verdict == "ok" and part.tests and not outcome.counts.get("passed"):
            outcome.verdict = "nothing ran"  # as where no GPU is found, and every test is skipped
        if outcome.verdict != "ok" and not outcome.failures:
            text = tail(self.log(part.name)) + record.read_text()
            outcome.failures[part.name] = text or outcome.verdict
        if outcome.verdict.startswith("stopped"):
            outcome.note = "what ran when it was stopped counts as passed"
        if part.tool:
            lines = self.log(part.name).read_text(errors="replace").splitlines()
            outcome.note += "; ".join(line.strip("= ") for line in lines if "SUMMARY" in line)
        if part.alone:
            self._repeat(outcome)

    def _repeat(self, outcome: Outcome) -> None:
        """Run failed tests alone, a few at a time: do they fail for themselves, or after others?"""

        def again(test: str) -> None:
            name = "alone " + re.sub(r"\W+", "-", test.partition("::")[2])
            verdict, _ = self.run(name, [*PYTEST, "-q", test], 60)
            alone = f"\nIN A PROCESS OF ITS OWN: {verdict}\n{tail(self.log(name))}"
            outcome.failures[test] += alone

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(again, [test for test in outcome.failures if "::" in test]))

    def _time(self, name: str, repeats: int, outcome: Outcome) -> None:
        table, cases, settings, limit_s = BENCHES[name]
        found = self._work / f"{name}.json"
        command = [sys.executable, "benchmarks/gpu.py", "--cases", cases, "--json", str(found)]
        command += ["--repeats", str(repeats), *settings]
        outcome.verdict, outcome.seconds = self.run(name, command, limit_s)
        if outcome.verdict != "ok":
            outcome.failures[name] = tail(self.log(name))
        if found.exists():
            self.measured[name] = json.loads(found.read_text())
            missed = [line for line in rows(table, self.measured[name]) if line[-1] != "met"]
            outcome.note = f"{len(table) - len(missed)} of {len(table)} bars met"

    def write(self) -> None:
        """Write the reports as things stand."""
        with self._writing:
            self._write()

    def _write(self) -> None:
        report = {
            "parts": [vars(outcome) for outcome in self.outcomes.values()],
            "measured": self.measured,
        }
        (self._out / "report.json").write_text(json.dumps(report, indent=1))
        text = parts_table(self.outcomes.values())
        for name, results in self.measured.items():
            text += "\n" + bench_table(name, BENCHES[name][0], results)
        (self._out / "report.md").write_text(text)
        texts = [
            f"{'=' * 100}\n{outcome.name}: {test}\n\n{shortened(cause)}\n"
            for outcome in self.outcomes.values()
            for test, cause in outcome.failures.items()
        ]
        (self._out / "failures.txt").write_text("\n".join(texts))
        with (self._out / "logs.txt").open("wb") as logs:
            for log in sorted(self._work.glob("*.log")):
                logs.write(f"\n===== {log.stem}\n".encode() + log.read_bytes()[-LOG_BYTES:])


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started, which holds the device too."""
    for order in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, order)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)


def shortened(text: str) -> str:
    """Leave out the middle of what is too long: a failure begins with its first cause."""
    if len(text) <= FAILURE_CHARACTERS:
        return text
    half = FAILURE_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def search_path(site: Path) -> str:
    """Describe every distribution of the tree as if it were installed; return the path to them."""
    folders = [str(site)]
    for file in sorted([*ROOT.glob("core/pyproject.toml"), *ROOT.glob("p*/*/pyproject.toml")]):
        project = tomllib.loads(file.read_text())["project"]
        name = project["name"].replace("-", "_")
        info = site / f"{name}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(text)
        groups = project.get("entry-points", {})
        lines = [
            line
            for group, points in groups.items()
            for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        folders.append(str(file.parent))
    return os.pathsep.join([*folders, str(ROOT), os.environ.get("PYTHONPATH", "")])


def command_of(part: Part, record: Path, found: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the command of a part; the conformance kit keeps its running case in `record`."""
    if part.command:
        return [sys.executable, *part.command, "--record", str(record)]
    tests = first_cases(part.tests, environment) if part.tool else part.tests
    command = [*PYTEST, "--junitxml", str(found), *tests]
    return ["compute-sanitizer", *part.tool, *command] if part.tool else command


def first_cases(files: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Collect tests and keep one case of each function: all kernels, in bounded time.

    A step can only be recorded with memory that is kept, which `UNCACHED` forbids.
    """
    command = [*PYTEST, "--collect-only", "-q", "-k", "not recorded", *files]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    listed = done.stdout.splitlines()
    first: dict[str, str] = {}
    for line in listed:
        if "::" in line:
            first.setdefault(line.partition("[")[0], line)
    return list(first.values())


def read_results(file: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return the tests' outcomes and each failed one's whole text, from pytest's XML."""
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    failures: dict[str, str] = {}
    if not file.exists():
        return {}, {}
    for case in ET.parse(file).getroot().iter("testcase"):
        broken = [child for child in case if child.tag in ("failure", "error")]
        skipped = case.find("skipped") is not None
        counts["failed" if broken else "skipped" if skipped else "passed"] += 1
        for child in broken:
            path = case.get("classname", "").replace(".", "/")
            captured = [case.findtext(name) or "" for name in ("system-out", "system-err")]
            text = "\n".join([child.get("message", ""), child.text or "", *captured])
            failures[f"{path}.py::{case.get('name')}"] = text
    return counts, failures


def first_error(text: str) -> str:
    """Return the line that says what went wrong: the first cause in a test's text, a log's last."""
    lines = [line for line in text.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E  ")]
    said = [line for line in marked or reversed(lines) if "Error" in line or "assert" in line]
    return (said or marked or lines[-1:] or [""])[0]


def tail(log: Path, count: int = 60) -> str:
    """Return a log's last lines."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) if log.exists() else ""


def parts_table(outcomes: Iterable[Outcome]) -> str:
    """Return the verdicts, and of every failure the first error, as Markdown."""
    lines = [
        "| part | verdict | s | passed | failed | skipped | |",
        "|---|---|---|---|---|---|---|",
    ]
    causes = []
    for one in outcomes:
        counts = " | ".join(str(one.counts.get(k, "")) for k in ("passed", "failed", "skipped"))
        lines.append(f"| {one.name} | {one.verdict} | {one.seconds:.0f} | {counts} | {one.note} |")
        causes += [f"- {test}: `{first_error(text)[:300]}`" for test, text in one.failures.items()]
    return "\n".join([*lines, "", *causes, ""])


def rows(table: Table, results: Mapping[str, object]) -> list[list[str]]:
    """Return name, value, limit, peer, bar and judgment of each line of a table."""
    found = []
    for name, (limit, peer, bar) in table.items():
        measured = results.get(name)
        shown, judged = "", "not measured"
        if isinstance(measured, dict):
            value = float(measured["median"])
            judged = "met" if better(name, value, bar) else "MISSED"
            shown = f"{value:.3f}" if value < 1000 else f"{value:.0f}"
        found.append([name, shown, str(limit), str(peer), str(bar), judged])
    return found


def better(name: str, value: float, bar: float) -> bool:
    """Tell whether a value reaches its bar; of throughput (c) and shares (s) more is better."""
    return value >= bar if name.startswith(("c ", "s ")) else value <= bar


def bench_table(name: str, table: Table, results: Mapping[str, object]) -> str:
    """Return what was measured as Markdown."""
    lines = [f"| {name} | here | limit | vLLM 0.25.1 | bar | |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(table, results)]
    return "\n".join(lines) + f"\n\nlimits measured: {json.dumps(results.get('limits'))}\n"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "h200")
    parser.add_argument("--only", nargs="+", choices=[*NAMES, *GROUPS], metavar="NAME")
    parser.add_argument("--budget-s", type=float, default=570)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    args = parser.parse_args(words)
    asked = args.only or [name for name in NAMES if name not in UNASKED]
    names = [name for word in asked for name in GROUPS.get(word, [word])]
    checks = [part for part in CHECKS if part.name in names]
    if args.dry_run:
        for part in checks:
            print(part.name, *command_of(part, Path("RECORD"), Path("XML"), os.environ))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    prover = Prover(args.out, args.budget_s, names)
    with ThreadPoolExecutor(max(1, len(checks))) as pool:
        list(pool.map(prover.check, checks))
    for name in (name for name in BENCHES if name in names):
        prover.time(name, args.repeats)
    prover.write()
    print((args.out / "report.md").read_text())
    return 0 if all(outcome.verdict == "ok" for outcome in prover.outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
