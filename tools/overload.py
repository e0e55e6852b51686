"""Offer a running server several times what it can do, and see that it does as much as ever.

    hotshoe serve demo --max-num-seqs 16 --max-num-queued-reqs 16
    python tools/overload.py --base-url http://127.0.0.1:8000

First a closed load finds the capacity: requests per second that keep to the objectives. Then an
open one sends `--factor` times as many. Passes if the goodput stays at 95 % or more, and every
request was either answered in full or refused with HTTP 429 or 503.

The client takes processor time, too. On a machine of few cores give each side its own (`taskset`),
or the share tells how they compete.
"""

import argparse
import asyncio
import json
import random
import sys
from argparse import Namespace
from collections.abc import Sequence

import uvloop

from hotshoe.errors import UserError
from hotshoe_bench.arrivals import arrival_times
from hotshoe_bench.client import Client, Target, request_body
from hotshoe_bench.datasets import Sizes, random_queries
from hotshoe_bench.load import Job, Load
from hotshoe_bench.prompts import IdWriter
from hotshoe_bench.record import Record
from hotshoe_bench.summary import failures, parse_objectives, percentile, summarize

ENDPOINT = "/v1/completions"
REFUSALS = ("HTTP 429", "HTTP 503")
MIN_SHARE = 0.95
VOCAB_SIZE = 4096


def parse(words: Sequence[str] | None = None) -> Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure goodput under overload.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--concurrency", type=int, default=24, help="of the load at capacity")
    parser.add_argument("--factor", type=float, default=10, help="offered load over capacity")
    parser.add_argument("--seconds", type=float, default=30, help="of each load, about")
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--goodput", nargs="+", default=["ttft:10000", "tpot:1000"])
    return parser.parse_args(words)


def make_jobs(args: Namespace, model: str, count: int) -> list[Job]:
    """Write requests of random tokens."""
    sizes = Sizes(args.input_len, args.output_len)
    queries = random_queries(count, sizes, IdWriter(VOCAB_SIZE), random.Random())
    extra = {"ignore_eos": True}
    return [Job(q, request_body(ENDPOINT, model, q.prompt, q.output_len, extra)) for q in queries]


def goodput(records: Sequence[Record], args: Namespace, skip_s: float) -> float:
    """Return good answers per second, without the load's first seconds and what ends after it.

    A load begins with an empty server and ends with a full one; both would blur its rate.
    """
    begin = min(record.sent_s for record in records) + skip_s
    end = max(record.sent_s for record in records)
    inner = [record for record in records if begin <= record.ended_s <= end]
    if not inner:
        return 0.0
    numbers = summarize(inner, parse_objectives(args.goodput))
    return numbers["goodput_share"] * len(inner) / (end - begin)


async def run(args: Namespace) -> dict[str, object]:
    """Run both loads and return what they found."""
    async with Client(Target(args.base_url, ENDPOINT)) as client:
        [model, *_] = await client.models()
        load = Load(client, exact=True)
        probe = await load.closed(make_jobs(args, model, 2 * args.concurrency), args.concurrency)
        rate = summarize(probe, {})["requests_per_s"]
        skip_s = args.seconds / 4
        calm = await load.closed(
            make_jobs(args, model, max(1, int(rate * args.seconds))), args.concurrency
        )
        capacity = goodput(calm, args, skip_s)
        jobs = make_jobs(args, model, int(args.factor * capacity * args.seconds))
        times = arrival_times(len(jobs), args.factor * capacity, 1.0, random.Random())
        stormy = await load.open(jobs, times)
    return report(args, calm, stormy, capacity, goodput(stormy, args, skip_s))


def report(
    args: Namespace,
    calm: Sequence[Record],
    stormy: Sequence[Record],
    capacity: float,
    under_load: float,
) -> dict[str, object]:
    """Put the numbers together, and judge them."""
    causes = {cause: failure.count for cause, failure in failures([*calm, *stormy]).items()}
    lost = {cause: count for cause, count in causes.items() if cause not in REFUSALS}
    answered = sorted(r.e2e_ms for r in stormy if r.e2e_ms is not None)
    share = under_load / capacity
    return {
        "capacity_requests_per_s": round(capacity, 3),
        "offered_requests_per_s": round(args.factor * capacity, 3),
        "goodput_requests_per_s": round(under_load, 3),
        "share_of_capacity": round(share, 4),
        "offered": len(stormy),
        "answered": len(answered),
        "failures": causes,
        "lost": lost,
        "e2e_ms_p99": round(percentile(answered, 99), 1) if answered else None,
        "passed": share >= MIN_SHARE and not lost,
    }


def main() -> int:
    """Measure and print one JSON object."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(run(parse()))
    except UserError as error:
        sys.exit(f"overload: {error}")
    print(json.dumps(found, indent=2))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
