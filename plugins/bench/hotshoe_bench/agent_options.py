"""The flags of `hotshoe bench agent`, and the sessions that they ask for."""

from __future__ import annotations

import random
from argparse import ArgumentParser, Namespace
from pathlib import Path

from hotshoe.cli.bench.workload import check_output
from hotshoe.errors import ConfigError
from hotshoe_bench.datasets import Sizes
from hotshoe_bench.options import (
    ENDPOINTS,
    SERVER_FLAGS,
    Flags,
    add_endpoint,
    add_groups,
    add_request_flags,
    check_lows,
    check_positive,
    find_tokenizer,
)
from hotshoe_bench.prompts import IdWriter, TextWriter, Writer
from hotshoe_bench.sessions import MAX_PAUSE_S, Plan, check_size, draw_plans, read_trace

DRAWN: Flags = {
    "--num-sessions": (int, 16, "sessions of each load"),
    "--num-turns": (int, 8, "requests of each session"),
    "--prefix-len": (int, 2048, "tokens of system prompt and tools, the same for all sessions"),
    "--input-len": (int, 128, "tokens that each request adds: a question, or a tool's result"),
    "--output-len": (int, 64, "tokens to generate by each request"),
    "--range-ratio": (float, 0.0, "draw both lengths from length * (1 +- ratio)"),
    "--tool-pause": (float, 1.0, "mean seconds of a tool call"),
}
_WORDS: Flags = {
    "--trace": (Path, None, "JSON lines that say lengths and pauses, a session on each"),
    "--tokenizer": (str, None, "model directory or name, to write text; default: --model"),
    "--vocab-size": (int, 4096, "prompts of token ids use ids below this"),
    "--seed": (int, None, "seed of sessions; default: a new one each time"),
}


def add_flags(parser: ArgumentParser) -> None:
    """Declare every flag of `bench agent`."""
    groups = add_groups(parser, {"server": SERVER_FLAGS, "sessions": {**DRAWN, **_WORDS}})
    add_endpoint(groups["server"])
    add_request_flags(groups["sessions"])
    parser.add_argument_group("load").add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        default=[1, 4, 16],
        metavar="N",
        help="sessions at a time, a load for each number (default: 1 4 16)",
    )
    results = parser.add_argument_group("results")
    results.add_argument(
        "--output-json", "--json", type=Path, metavar="FILE", help="write the results here"
    )
    results.add_argument(
        "--output-svg", "--svg", type=Path, metavar="FILE", help="draw speed against throughput"
    )


def check(args: Namespace) -> None:
    """Refuse what measures nothing.

    Raises:
        ConfigError: A value is out of range, or two contradict each other.
    """
    check_lows(args, {"num_sessions": 1, "num_turns": 1})
    check_positive(args, "request_timeout")
    if not 0 <= args.tool_pause <= MAX_PAUSE_S:
        raise ConfigError(
            f"--tool-pause must be from 0 to {MAX_PAUSE_S:g} seconds, not {args.tool_pause}"
        )
    if min(args.concurrency) < 1 or len({*args.concurrency}) < len(args.concurrency):
        raise ConfigError("--concurrency must be different numbers of at least 1")
    if args.trace is not None:
        for flag, (_, default, _) in DRAWN.items():
            if getattr(args, flag[2:].replace("-", "_")) != default:
                raise ConfigError(
                    f"{flag} shapes drawn sessions, but --trace says the lengths of recorded "
                    "ones; leave one of the two out"
                )
    for path in (args.output_json, args.output_svg):
        check_output(path)


def make_plans(args: Namespace, rng: random.Random) -> list[Plan]:
    """Draw or read the sessions of a load.

    Raises:
        ConfigError: Sizes are out of range, the trace is none, or a load has too few sessions.
    """
    if args.trace is not None:
        plans = read_trace(args.trace)
    else:
        sizes = Sizes(args.input_len, args.output_len, args.range_ratio, args.prefix_len)
        tokens = args.prefix_len + args.num_turns * (args.input_len + args.output_len)
        check_size(args.num_sessions * tokens)
        plans = draw_plans(args.num_sessions, args.num_turns, sizes, args.tool_pause, rng)
    check_size(sum(plan.num_tokens for plan in plans))
    if max(args.concurrency) > len(plans):
        remedy = "give a longer trace" if args.trace else "raise --num-sessions"
        raise ConfigError(
            f"--concurrency {max(args.concurrency)} needs as many sessions, "
            f"and there are {len(plans)}; {remedy}"
        )
    return plans


def make_writer(args: Namespace, model: str) -> Writer:
    """Return what writes prompts: text for chats, token ids otherwise.

    Raises:
        ConfigError: The vocabulary is too small, or text is wanted and no tokenizer is known.
    """
    if args.endpoint == ENDPOINTS[1]:
        return TextWriter(find_tokenizer(args, model))
    return IdWriter(args.vocab_size)
