"""Keep a server busy with a mixed load for a while, and see that it holds no more than before.

    python tools/soak.py --hours 24 [-- demo --platform cpu ...]

Starts `hotshoe serve` with the words after `--`. The load: short and long prompts, shared prefixes,
several sequences, grammars, adapters that are served, answers that nobody waits for, requests that
are refused; meanwhile the model sleeps and wakes. What the server and its children hold in memory,
and their open files, are sampled throughout. It passes if memory grows by less than `--max-slope`
MiB a minute over the second half, files by less than `--max-files` from the middle to the end, and
every request had the end that was meant for it. Latency is told by quarters.
"""

import argparse
import asyncio
import http.client
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing, suppress
from http import HTTPStatus
from pathlib import Path

import uvloop

from hotshoe_bench.client import Client, Target, request_body
from hotshoe_bench.record import Exchange
from hotshoe_bench.sse import read_stream

ENDPOINT = "/v1/completions"
SAMPLE_S = 2.0
START_S = 120
MIB = 2**20
#: Small caches, for memory that is first touched later on would look like a leak.
SERVE = ["demo", "--kv-cache-memory-bytes", str(64 * MIB)]
SERVE += ["--structured-output-cache-bytes", str(16 * MIB)]
PREFIX = [1000 + i % 2000 for i in range(300)]

Sender = Callable[[Client, str, random.Random], Awaitable[str]]


async def answered(client: Client, body: bytes) -> str:
    """Send a request that should be answered in full; return its end."""
    exchange = await client.send(body, time.perf_counter())
    if exchange.failure is not None:
        return f"failed: {exchange.failure} {exchange.detail}"
    stream = read_stream(exchange.pieces)
    if stream.error is not None:
        return f"failed: {stream.error}"
    return "answered" if stream.finish_reason in ("length", "stop") else "failed: cut off"


def ids(rng: random.Random, low: int, high: int) -> list[int]:
    """Return so many random token ids."""
    return rng.choices(range(256, 4096), k=rng.randint(low, high))


async def short(client: Client, model: str, rng: random.Random) -> str:
    """A few tokens in, some out."""
    prompt = ids(rng, 1, 40)
    return await answered(client, request_body(ENDPOINT, model, prompt, rng.randint(1, 60), {}))


async def long(client: Client, model: str, rng: random.Random) -> str:
    """A long prompt."""
    return await answered(client, request_body(ENDPOINT, model, ids(rng, 400, 1500), 20, {}))


async def shared(client: Client, model: str, rng: random.Random) -> str:
    """A prefix that others have, too."""
    body = request_body(ENDPOINT, model, [*PREFIX, *ids(rng, 1, 30)], 16, {})
    return await answered(client, body)


async def several(client: Client, model: str, rng: random.Random) -> str:
    """Some sequences at once, sampled, with log probabilities."""
    extra = {"n": 3, "temperature": 1.0, "logprobs": 2, "seed": rng.randrange(2**31)}
    return await answered(client, request_body(ENDPOINT, model, ids(rng, 5, 50), 24, extra))


async def left(client: Client, model: str, rng: random.Random) -> str:
    """An answer that nobody waits for."""
    body = request_body(ENDPOINT, model, ids(rng, 5, 200), 1000, {"ignore_eos": True})
    task = asyncio.create_task(client.send(body, time.perf_counter()))
    await asyncio.sleep(rng.uniform(0, 0.5))
    if task.done():
        return "failed: it ended early"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return "left"


async def refused(client: Client, model: str, rng: random.Random) -> str:
    """A mistake."""
    extra = rng.choice([{"temperature": -1}, {"max_tokens": 0}, {"nonsense": 1}, {"n": 10**9}])
    body = request_body(ENDPOINT, model, ids(rng, 1, 20), 4, extra)
    exchange: Exchange = await client.send(body, time.perf_counter())
    return "refused" if exchange.failure == "HTTP 400" else f"failed: {exchange.failure}"


async def shaped(client: Client, model: str, rng: random.Random) -> str:
    """An answer of a form that nobody asked for before."""
    names = [f"field_{rng.randrange(10**6)}" for _ in range(3)]
    form = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    extra = {"structured_outputs": {"json": form}}
    return await answered(client, request_body(ENDPOINT, model, ids(rng, 1, 40), 24, extra))


KINDS: dict[Sender, int] = {
    short: 8,
    long: 1,
    shared: 3,
    several: 2,
    shaped: 1,
    left: 2,
    refused: 1,
}


class Admin(http.client.HTTPConnection):
    """Talks to the admin socket of a server."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=START_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's file."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def sleep_and_wake(path: Path) -> str:
    """Let the model sleep and wake, with its requests kept meanwhile; return what came of it."""
    for verb in ("/sleep", "/wake_up"):
        with closing(Admin(path)) as admin:
            admin.request("POST", verb)
            answer = admin.getresponse()
            if answer.status != HTTPStatus.OK:
                return f"failed: {verb} {answer.status} {answer.read(200)!r}"
    return "slept"


#: What a process holds of its own. Pages of files are left out: their share depends on who else on
#: the machine has them mapped.
HELD = ("Pss_Anon:", "Pss_Shmem:")


def held_bytes(pid: int) -> dict[int, int]:
    """Return the memory of a process and its descendants by id, shared pages counted by share."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
        children = (folder / f"task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # a child that has just ended
        return {}
    found = {pid: sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(HELD))}
    for child in children:
        found |= held_bytes(int(child))
    return found


def slope_mib_per_minute(samples: Sequence[tuple[float, int]]) -> float:
    """Fit a line through the second half of (seconds, bytes)."""
    seconds, sizes = zip(*samples[len(samples) // 2 :], strict=True)
    return 60 * statistics.linear_regression(seconds, sizes).slope / MIB


def open_files(pids: Iterable[int]) -> int:
    """Return how many descriptors processes have open; of one that has ended, none."""
    found = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            found += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return found


def more_files(counts: Sequence[int]) -> int:
    """Return how many more are open at the end than in the middle, by medians of a tenth each."""
    width, middle = max(len(counts) // 10, 1), len(counts) // 2
    before, after = counts[middle : middle + width], counts[-width:]
    return round(statistics.median(after) - statistics.median(before))


def quarters_ms(latencies: Sequence[tuple[float, float]], seconds: float) -> list[float | None]:
    """Return the median of (when, how long), both in seconds, of each quarter of a run."""
    parts: list[list[float]] = [[], [], [], []]
    for moment, latency in latencies:
        parts[min(int(4 * moment / seconds), 3)].append(latency)
    return [round(1000 * statistics.median(part), 1) if part else None for part in parts]


def growth(samples: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Say how memory grew: at the beginning, in the middle, at the end, and how fast."""
    first, middle, last = (samples[i][1] / MIB for i in (0, len(samples) // 2, -1))
    slope = slope_mib_per_minute(samples)
    mib = {"first_mib": first, "middle_mib": middle, "last_mib": last}
    return {name: round(value, 1) for name, value in mib.items()} | {
        "slope_mib_per_minute": round(slope, 3)
    }


async def soak(args: Namespace, url: str, pid: int, admin: Path) -> dict[str, object]:
    """Run the load and watch the memory."""
    ends: Counter[str] = Counter()
    samples: list[tuple[float, dict[int, int]]] = []
    counts: list[int] = []
    latencies: list[tuple[float, float]] = []
    begin = time.monotonic()
    stop = begin + 60 * args.minutes
    rng = random.Random(args.seed)

    async def work() -> None:
        while time.monotonic() < stop:
            [send] = rng.choices(list(KINDS), list(KINDS.values()))
            start = time.monotonic()
            ends[f"{send.__name__}: {await send(client, rng.choice(models), rng)}"] += 1
            if send is shared:
                latencies.append((start - begin, time.monotonic() - start))

    async def watch() -> None:
        while time.monotonic() < stop:
            samples.append((time.monotonic() - begin, held_bytes(pid)))
            counts.append(open_files(samples[-1][1]))
            await asyncio.sleep(SAMPLE_S)

    async def rest() -> None:
        while (left_s := stop - time.monotonic()) > 0:
            await asyncio.sleep(min(args.sleep_every, left_s))
            ends[f"sleep: {await asyncio.to_thread(sleep_and_wake, admin)}"] += 1

    async with Client(Target(url, ENDPOINT)) as client:
        models = list(await client.models())  # those behind the first are adapters
        await asyncio.gather(watch(), rest(), *(work() for _ in range(args.concurrency)))
    total = growth([(second, sum(sizes.values())) for second, sizes in samples])
    failed = {end: count for end, count in ends.items() if "failed" in end}
    lasting = set.intersection(*(set(sizes) for _, sizes in samples))
    return {
        "minutes": args.minutes,
        "requests": ends.total(),
        "ends": dict(ends.most_common()),
        **total,
        "processes": {
            process: growth([(second, sizes[process]) for second, sizes in samples])
            for process in sorted(lasting)
        },
        "more_files": more_files(counts),
        "latency_of_quarters_ms": quarters_ms(latencies, 60 * args.minutes),
        "passed": total["slope_mib_per_minute"] < args.max_slope
        and more_files(counts) < args.max_files
        and not failed,
    }


def start(words: Sequence[str], log: Path, admin: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server on a free port and wait until it is ready; its log goes to a file."""
    command = [sys.executable, "-m", "hotshoe.cli", "serve", *words]
    command += ["--port", "0", "--admin-socket", str(admin)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        lines = log.read_text().splitlines()
        if any(line.startswith("ready") for line in lines):
            return process, next(line.split()[2] for line in lines if line.startswith("listening"))
        time.sleep(0.1)
    process.kill()
    sys.exit(f"the server did not start; see {log}")


def parse(words: Sequence[str] | None = None) -> Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Look for leaks under a mixed load.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--hours", type=float, help="in place of --minutes")
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--max-slope", type=float, default=0.25, help="MiB a minute")
    parser.add_argument("--max-files", type=int, default=20, help="open files more at the end")
    parser.add_argument("--sleep-every", type=float, default=60, help="seconds between two sleeps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("soak.log"), help="of the server")
    parser.add_argument("serve", nargs="*", default=SERVE, help="words for `hotshoe serve`")
    args = parser.parse_args(words)
    if args.hours is not None:
        args.minutes = 60 * args.hours
    return args


def main() -> int:
    """Soak and print one JSON object."""
    args = parse()
    with tempfile.TemporaryDirectory() as folder:
        admin = Path(folder) / "admin"
        process, url = start(args.serve, args.log, admin)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(soak(args, url, process.pid, admin))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    print(json.dumps(found, indent=2))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
