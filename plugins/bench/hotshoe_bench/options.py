"""The flags of `hotshoe bench serve`, and what they say once they have been checked."""

from __future__ import annotations

import argparse
import json
import math
import random
import secrets
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hotshoe.cli.bench.workload import check_output
from hotshoe.config import EngineConfig
from hotshoe.engine.start.places import find_model, read_tokenizer
from hotshoe.errors import ConfigError, UserError
from hotshoe.plugins import PluginManager
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_bench.client import Target
from hotshoe_bench.datasets import Query, Sizes, conversation_queries, random_queries
from hotshoe_bench.prompts import IdWriter, TextWriter, Writer

ENDPOINTS = ("/v1/completions", "/v1/chat/completions")

# Group -> flag -> (type, default, help). None as a default means that the help says what happens.
Flags = dict[str, tuple[Any, Any, str]]
SERVER_FLAGS: Flags = {
    "--base-url": (str, "http://127.0.0.1:8000", "where the server listens"),
    "--model": (str, None, "name of the model; default: the first that the server lists"),
    "--api-key-file": (Path, None, "file with the key, sent as a bearer token"),
    "--request-timeout": (float, 600.0, "seconds until a request counts as failed"),
}
_FLAGS: dict[str, Flags] = {
    "server": SERVER_FLAGS,
    "prompts": {
        "--num-prompts": (int, 100, "requests to measure"),
        "--num-warmups": (int, 4, "requests sent beforehand, all at once, not measured"),
        "--input-len": (int, 128, "random tokens of each prompt"),
        "--output-len": (int, None, "tokens to generate; default: 128, or as recorded"),
        "--range-ratio": (float, 0.0, "draw both lengths from length * (1 +- ratio)"),
        "--prefix-len": (int, 0, "tokens that prompts share, in front of the random ones"),
        "--num-prefixes": (int, 1, "different shared prefixes, used in turn"),
        "--conversations": (Path, None, "JSON file of conversations as ShareGPT has them"),
        "--tokenizer": (str, None, "model directory or name, to write text; default: --model"),
        "--vocab-size": (int, 4096, "prompts of token ids use ids below this"),
        "--seed": (int, None, "seed of prompts and arrivals; default: a new one each time"),
    },
    "load": {
        "--request-rate": (float, None, "requests per second, whatever the server does"),
        "--burstiness": (float, 1.0, "of arrivals: 1 Poisson, below in bursts, above steadier"),
        "--max-concurrency": (int, None, "requests under way at any time"),
    },
}

#: Which flags shape random prompts alone; recorded ones are as they are.
_OF_RANDOM_PROMPTS = (
    "--input-len",
    "--range-ratio",
    "--prefix-len",
    "--num-prefixes",
    "--vocab-size",
)


def add_flags(parser: ArgumentParser) -> None:
    """Declare every flag of `bench serve`."""
    groups = add_groups(parser, _FLAGS)
    add_endpoint(groups["server"])
    groups["prompts"].add_argument(
        "--text", action="store_true", help="send text to /v1/completions, not token ids"
    )
    add_request_flags(groups["prompts"])
    results = parser.add_argument_group("results")
    results.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count requests that keep to all of these, such as ttft:500 tpot:50 e2e:9000",
    )
    results.add_argument("--output-json", type=Path, metavar="FILE", help="write the results here")


def add_groups(
    parser: ArgumentParser, tables: Mapping[str, Flags]
) -> dict[str, argparse._ArgumentGroup]:
    """Declare the flags of tables, a group each, and return the groups by title."""
    groups = {}
    for title, flags in tables.items():
        group = groups[title] = parser.add_argument_group(title)
        for flag, (kind, default, text) in flags.items():
            shown = "" if default in (None, 0) else f" (default: {default})"
            metavar = {int: "N", float: "X", str: "TEXT", Path: "FILE"}[kind]
            group.add_argument(flag, type=kind, default=default, metavar=metavar, help=text + shown)
    return groups


def add_endpoint(group: argparse._ArgumentGroup) -> None:
    """Declare the choice of the path."""
    group.add_argument(
        "--endpoint",
        choices=ENDPOINTS,
        default=ENDPOINTS[0],
        help="path to send to (default: %(default)s)",
    )


def add_request_flags(group: argparse._ArgumentGroup) -> None:
    """Declare the flags for the fields of each request."""
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="generate --output-len tokens exactly (default: yes)",
    )
    group.add_argument(
        "--extra-body",
        type=_json_object,
        default={},
        metavar="JSON",
        help="further fields of each request, such as '{\"top_k\": 1}'",
    )


def check(args: Namespace) -> None:
    """Refuse what measures nothing.

    Raises:
        ConfigError: A value is out of range, or two contradict each other.
    """
    lows = {"num_prompts": 1, "num_warmups": 0, "max_concurrency": 1, "output_len": 1}
    check_lows(args, lows)
    check_positive(args, "request_rate", "burstiness", "request_timeout")
    if args.request_rate is not None and args.max_concurrency is not None:
        raise ConfigError(
            "--request-rate and --max-concurrency contradict each other: requests held back by "
            "the client would look faster than their users found them; choose one"
        )
    _check_recorded(args)
    check_output(args.output_json)


def check_lows(args: Namespace, lows: Mapping[str, int]) -> None:
    """Refuse counts below the lowest that means anything.

    Raises:
        ConfigError: A value is too low.
    """
    for name, low in lows.items():
        value = getattr(args, name)
        if value is not None and value < low:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} must be at least {low}, not {value}")


def check_positive(args: Namespace, *names: str) -> None:
    """Refuse numbers that are not above 0, or not finite.

    Raises:
        ConfigError: A value is out of range.
    """
    for name in names:
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} must be above 0, not {value}")


def _check_recorded(args: Namespace) -> None:
    """Refuse what cannot be had of recorded conversations.

    Raises:
        ConfigError: A flag shapes random prompts.
    """
    if args.conversations is None:
        return
    defaults = {flag: _FLAGS["prompts"][flag][1] for flag in _OF_RANDOM_PROMPTS}
    for flag, default in {**defaults, "--text": False}.items():
        if getattr(args, flag[2:].replace("-", "_")) != default:
            raise ConfigError(
                f"{flag} shapes random prompts, but --conversations sends recorded ones; "
                "leave one of the two out"
            )


def target(args: Namespace) -> Target:
    """Return where requests go.

    Raises:
        ConfigError: The address is none, or the key file is unreadable or empty.
    """
    url = args.base_url.rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path:
        raise ConfigError(f"--base-url must look like http://127.0.0.1:8000, not {args.base_url!r}")
    key = None
    if args.api_key_file is not None:
        try:
            key = args.api_key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {args.api_key_file}: {error}") from None
        if not key or any(c.isspace() for c in key):
            raise ConfigError(f"{args.api_key_file} must hold one key")
    return Target(url, args.endpoint, key, args.request_timeout)


def make_queries(args: Namespace, model: str, rng: random.Random) -> list[Query]:
    """Make warm-up and measured requests, the former in front and without shared prefixes.

    Raises:
        ConfigError: Sizes are out of range, or text is wanted and no tokenizer is known.
    """
    count = args.num_prompts
    if args.conversations is not None:
        tokenizer = find_tokenizer(args, model)
        total = args.num_warmups + count
        return conversation_queries(args.conversations, total, tokenizer, args.output_len, rng)
    writer: Writer
    if args.text or args.endpoint == ENDPOINTS[1]:
        writer = TextWriter(find_tokenizer(args, model))
    else:
        writer = IdWriter(args.vocab_size)
    output_len = 128 if args.output_len is None else args.output_len
    alone = Sizes(args.input_len, output_len, args.range_ratio)
    sizes = Sizes(args.input_len, output_len, args.range_ratio, args.prefix_len, args.num_prefixes)
    return [
        *random_queries(args.num_warmups, alone, writer, rng),
        *random_queries(count, sizes, writer, rng),
    ]


def extra_body(args: Namespace) -> Mapping[str, Any]:
    """Return the fields of a request beside the usual ones."""
    return {**({"ignore_eos": True} if args.ignore_eos else {}), **args.extra_body}


def choose_seed(args: Namespace) -> int:
    """Return the seed. A repeated one would find its prompts in the server's prefix cache."""
    return secrets.randbits(32) if args.seed is None else int(args.seed)


def find_tokenizer(args: Namespace, model: str) -> Tokenizer:
    """Read the tokenizer that prompts of text are written with.

    Raises:
        ConfigError: There is none.
    """
    name = args.tokenizer or model
    plugins = PluginManager()
    try:
        return read_tokenizer(find_model(EngineConfig(model=name), plugins).path, plugins)
    except UserError as error:
        raise ConfigError(
            f"prompts of text need the model's tokenizer ({error}); give --tokenizer DIRECTORY"
        ) from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value
