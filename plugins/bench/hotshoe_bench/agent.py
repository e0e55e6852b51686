"""`hotshoe bench agent`: sessions of agents on a running server, so many at a time."""

from __future__ import annotations

import asyncio
import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotshoe.cli.bench.workload import show_progress, write_results
from hotshoe.cli.session import say
from hotshoe.errors import ConfigError

if TYPE_CHECKING:
    from hotshoe_bench.client import Client
    from hotshoe_bench.load import Job, Load
    from hotshoe_bench.record import Record
    from hotshoe_bench.sessions import Plan, Session


@dataclass(frozen=True, slots=True)
class Level:
    """What one load came to: its sessions at a time and its requests."""

    concurrency: int
    records: list[Record]


class Agent:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        from hotshoe_bench.agent_options import add_flags

        add_flags(parser)

    def run(self, args: Namespace) -> int:
        import uvloop

        from hotshoe_bench import agent_options, agent_report
        from hotshoe_bench.options import choose_seed

        agent_options.check(args)
        args.seed = choose_seed(args)
        plans = agent_options.make_plans(args, random.Random(args.seed))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            levels = runner.run(measure(args, plans))
        results = [agent_report.summarize_level(level, plans) for level in levels]
        print(agent_report.render(levels, results))
        if args.output_json is not None:
            document = agent_report.document(args, levels, results)
            write_results(args.output_json, document)
        if args.output_svg is not None:
            agent_report.write_svg(args.output_svg, results, args.model)
        return 0 if any(numbers["num_completed"] for numbers in results) else 1


async def measure(args: Namespace, plans: Sequence[Plan]) -> list[Level]:
    """Run a load for each number of sessions at a time.

    Raises:
        ConfigError: The server cannot be measured as asked.
    """
    from hotshoe_bench import options
    from hotshoe_bench.agent_options import make_writer
    from hotshoe_bench.client import Client, request_body
    from hotshoe_bench.load import Job, Load
    from hotshoe_bench.serve import context_of, first_model
    from hotshoe_bench.sessions import check_context, write_prefixes, write_sessions

    extra, chat = options.extra_body(args), args.endpoint == options.ENDPOINTS[1]

    def job(session: Session, number: int) -> Job:
        query = session.query(number, chat)
        body = request_body(args.endpoint, args.model, query.prompt, query.output_len, extra)
        return Job(query, body)

    total = sum(len(plan.turns) for plan in plans)
    levels = []
    async with Client(options.target(args)) as client:
        if args.model is None:
            args.model, context = await first_model(client)
        else:
            context = await context_of(client, args.model)
        check_context(plans, context)
        writer = make_writer(args, args.model)
        prefixes = write_prefixes(plans, writer, random.Random(f"{args.seed} prefixes"))
        await warm_up(
            client, write_sessions(_one_each(plans), prefixes, writer, _rng(args, 0)), job
        )
        for concurrency in args.concurrency:
            say(f"{concurrency} session{'s' if concurrency > 1 else ''} at a time")
            sessions = write_sessions(plans, prefixes, writer, _rng(args, concurrency))
            load = Load(client, args.ignore_eos, lambda done: show_progress(done, total))
            levels.append(Level(concurrency, await play_all(load, sessions, job, concurrency)))
    return levels


async def warm_up(
    client: Client, sessions: Iterable[Session], job: Callable[[Session, int], Job]
) -> None:
    """Send the first turn of sessions, which does not count, so that the prefixes are known.

    Raises:
        ConfigError: One was not answered, so that the load would not be the one asked for.
    """
    from hotshoe_bench.load import Load

    load = Load(client, exact=False)
    for session in sessions:
        record = await load.run(job(session, 0), time.perf_counter())
        if record.failure is not None:
            raise ConfigError(f"a warm-up request failed: {record.failure} {record.detail}")


async def play_all(
    load: Load,
    sessions: Iterable[Session],
    job: Callable[[Session, int], Job],
    concurrency: int,
) -> list[Record]:
    """Keep `concurrency` sessions under way; each ended one makes room for the next."""
    records: list[Record] = []
    waiting = iter(sessions)

    async def work() -> None:
        for session in waiting:
            records.extend(await play(load, session, job))

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return records


async def play(load: Load, session: Session, job: Callable[[Session, int], Job]) -> list[Record]:
    """Send the turns of a session, each a tool call after the answer before.

    A failed request ends its session, as it would end an agent's.
    """
    records: list[Record] = []
    for number, turn in enumerate(session.plan.turns):
        ready = job(session, number)  # written during the tool call
        due = (records[-1].ended_s if records else time.perf_counter()) + turn.pause_s
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        records.append(await load.run(ready, due))
        if records[-1].failure is not None:
            break
    return records


def _one_each(plans: Sequence[Plan]) -> list[Plan]:
    """Return a plan for each length of prefix."""
    return list({plan.prefix_len: plan for plan in plans}.values())


def _rng(args: Namespace, concurrency: int) -> random.Random:
    """Return a source of other words for each load, so that no load finds those of another."""
    return random.Random(f"{args.seed} load {concurrency}")
