"""Checks and times everything on one H200 in one call, and prints a table.

    python tools/h200.py [--only checks|sanitizer|bench|fp8] [--repeats 3] [--out DIR]

The distributions must be importable (installed, or on PYTHONPATH with their metadata). Checks run
the kernels' tests, the engine's, transformers' tokens and the conformance kit on the GPU; the
sanitizer looks for bad memory accesses in the kernels' tests; the benchmarks print what
`benchmarks/gpu.py` measures beside the limit and what vLLM 0.25.1 reaches on such a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
CLI = [sys.executable, "-m", "hotshoe.cli"]
CHECKS = {
    # Cross-compilation needs no GPU.
    "kernels": [
        *PYTEST,
        "tests/platforms/triton",
        "--ignore",
        "tests/platforms/triton/test_matrix.py",
    ],
    "platform and engine": [*PYTEST, "tests/platforms/cuda"],
    "tokens of transformers": [*PYTEST, "tests/plugins/models/test_end_to_end.py", "-k", "cuda"],
    "conformance": [*CLI, "conformance", "--platform", "cuda", "--quick"],
}
SANITIZED = ("norm", "activation", "embedding", "rotary", "attention", "linear", "sampling")
#: What runs longer than this has failed.
LIMIT_S = 300
#: Name: limit, what the peer reaches, the bar; ms or s are better low, tokens/s high.
BF16 = {
    "a one stream 128/256": (3.45, 4.90, 4.4),
    "d decode 32 x 1024": (4.42, 6.28, 5.8),
    "d decode 128 x 1024": (7.38, 10.47, 9.8),
    "d decode 256 x 1024": (11.31, 17.44, 16.0),
    "b prefill 8192": (174, 212, 212),
    "c 512 x (1024/128)": (None, 35_567, 36_500),
    "c 256 x (128/512)": (None, 23_246, 24_500),
    "e start to first token": (None, 33.2, 12),
}
FP8 = {
    "a one stream 128/256": (1.85, 3.49, 3.49),
    "d decode 32 x 1024": (2.82, 5.27, 5.27),
    "d decode 128 x 1024": (5.78, 8.75, 8.75),
    "d decode 256 x 1024": (9.71, 15.07, 15.07),
    "b prefill 8192": (92, 145, 145),
    "c 512 x (1024/128)": (None, 50_756, 50_756),
    "c 256 x (128/512)": (None, 29_243, 29_243),
}


def run(name: str, command: list[str], log: Path) -> bool:
    """Run a command, keep its output, and say how it ended."""
    begin = time.perf_counter()
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = -9
    last = next((line for line in reversed(log.read_text().splitlines()) if line.strip()), "")
    verdict = "ok" if code == 0 else f"FAILED ({code})"
    print(f"{name:26} {verdict:12} {time.perf_counter() - begin:6.1f} s  {last[:110]}", flush=True)
    if code:
        print("\n".join(log.read_text().splitlines()[-40:]), flush=True)
    return code == 0


def sanitize(out: Path) -> bool:
    """Run the kernels' tests under memcheck."""
    tests = [f"tests/platforms/triton/test_{name}.py" for name in SANITIZED]
    options = ["--tool", "memcheck", "--error-exitcode", "9", "--target-processes", "all"]
    command = ["compute-sanitizer", *options, *PYTEST, "-x", *tests]
    return run("memcheck", command, out / "memcheck.log")


def bench(name: str, table: dict, settings: list[str], repeats: int, out: Path) -> bool:
    """Time one configuration and compare."""
    found = out / f"{name}.json"
    cases = "e,a,b,d,c" if "e start to first token" in table else "a,b,d,c"
    command = [sys.executable, "benchmarks/gpu.py", "--cases", cases, "--json", str(found)]
    command += ["--repeats", str(repeats), *settings]
    if not run(f"bench {name}", command, out / f"{name}.log"):
        return False
    results = json.loads(found.read_text())
    values = {key: value["median"] for key, value in results.items() if "median" in str(value)}
    if "e" in results:
        values["e start to first token"] = results["e"]["total_s"]
    print(f"\n{name:26} {'here':>10} {'limit':>8} {'vLLM':>8} {'bar':>8}")
    met = True
    for key, (limit, peer, bar) in table.items():
        value = values[key]
        good = value >= bar if key.startswith("c") else value <= bar
        met &= good
        shown = f"{limit or '':>8} {peer:>8} {bar:>8} {'' if good else '  MISSED'}"
        print(f"{key:26} {value:>10.3f} {shown}", flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("checks", "sanitizer", "bench", "fp8"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "h200")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = [args.only] if args.only else ["checks", "sanitizer", "bench", "fp8"]
    fine = []
    if "checks" in wanted:
        for name, command in CHECKS.items():
            fine.append(run(name, command, args.out / f"{name.replace(' ', '-')}.log"))
    if "sanitizer" in wanted:
        fine.append(sanitize(args.out))
    if "bench" in wanted:
        fine.append(bench("bfloat16", BF16, [], args.repeats, args.out))
    if "fp8" in wanted:
        fine.append(bench("fp8", FP8, ["quantization=fp8"], args.repeats, args.out))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
