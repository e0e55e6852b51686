"""`hotshoe bench serve`: a load on a running server, as its clients see it."""

from __future__ import annotations

import asyncio
import random
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotshoe.cli.bench.workload import show_progress, write_results
from hotshoe.cli.session import say
from hotshoe.errors import ConfigError

if TYPE_CHECKING:
    from hotshoe_bench.client import Client
    from hotshoe_bench.load import Job
    from hotshoe_bench.record import Record


class Serve:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        from hotshoe_bench.options import add_flags

        add_flags(parser)

    def run(self, args: Namespace) -> int:
        import uvloop

        from hotshoe_bench import options, report
        from hotshoe_bench.summary import failures, parse_objectives, summarize

        options.check(args)
        objectives = parse_objectives(args.goodput)
        args.seed = options.choose_seed(args)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            records = runner.run(measure(args))
        numbers, failed = summarize(records, objectives), failures(records)
        print(report.render(numbers, failed))
        if args.output_json is not None:
            server = {"base_url": args.base_url, "model": args.model, "endpoint": args.endpoint}
            result = report.document(args, server, numbers, failed, records)
            write_results(args.output_json, result)
        return 0 if numbers["num_completed"] else 1


async def measure(args: Namespace) -> list[Record]:
    """Make the requests, warm the server up, run the load.

    Raises:
        ConfigError: The server cannot be measured as asked.
    """
    from hotshoe_bench import options
    from hotshoe_bench.arrivals import arrival_times
    from hotshoe_bench.client import Client
    from hotshoe_bench.load import Load

    rng = random.Random(args.seed)
    async with Client(options.target(args)) as client:
        if args.model is None:
            args.model, _ = await first_model(client)
        jobs = make_jobs(args, rng)
        await warm_up(client, jobs[: args.num_warmups])
        jobs = jobs[args.num_warmups :]
        load = Load(client, args.ignore_eos, lambda done: show_progress(done, len(jobs)))
        if args.max_concurrency is not None:
            return await load.closed(jobs, args.max_concurrency)
        times = arrival_times(len(jobs), args.request_rate, args.burstiness, rng)
        return await load.open(jobs, times)


async def first_model(client: Client) -> tuple[str, int | None]:
    """Ask the server for its first model, and for that one's context in tokens.

    Raises:
        ConfigError: There is none, or no server.
    """
    models = await client.models()
    if not models:
        raise ConfigError("the server lists no model; give --model")
    name, context = next(iter(models.items()))
    say(f"measuring model {name}")
    return name, context


async def context_of(client: Client, model: str) -> int | None:
    """Return the context of a model in tokens; None where the server does not say."""
    try:
        return (await client.models()).get(model)
    except ConfigError:  # a model that is named needs no list
        return None


def make_jobs(args: Namespace, rng: random.Random) -> list[Job]:
    """Write every request down, so that none is written while the clock runs."""
    from hotshoe_bench import options
    from hotshoe_bench.client import request_body
    from hotshoe_bench.load import Job

    extra = options.extra_body(args)
    return [
        Job(q, request_body(args.endpoint, args.model, q.prompt, q.output_len, extra))
        for q in options.make_queries(args, args.model, rng)
    ]


async def warm_up(client: Client, jobs: Sequence[Job]) -> None:
    """Send requests that do not count.

    Raises:
        ConfigError: None of them was answered, so that nothing would be measured.
    """
    from hotshoe_bench.load import Load

    records = await Load(client, exact=False).closed(jobs, max(1, len(jobs)))
    if records and all(record.failure is not None for record in records):
        raise ConfigError(f"every warm-up request failed: {records[0].failure} {records[0].detail}")
