"""What the benchmarks share: flags, random prompts, iterations, the table and the JSON file.

Prompts are random token ids, fresh in every iteration, so that no prefix is ever found in the
cache by accident. Progress goes to stderr, and only to a terminal.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe import __version__
from hotshoe.cli.options import add_engine_flags, engine_config
from hotshoe.cli.session import open_llm
from hotshoe.cli.table import table
from hotshoe.errors import ConfigError
from hotshoe.types import SamplingParams, TokensPrompt

if TYPE_CHECKING:
    from hotshoe.engine.api.llm import LLM

BAR_WIDTH = 30


def add_workload_flags(parser: ArgumentParser, *, num_prompts: int) -> None:
    """Add the sizes of the workload, the iterations and the engine's flags."""
    _add_counts(
        parser,
        ("--input-len", 128, "prompt tokens of each request"),
        ("--output-len", 128, "generated tokens of each request"),
        ("--num-prompts", num_prompts, "requests in an iteration"),
    )
    add_iteration_flags(parser)
    add_engine_flags(parser)


def add_iteration_flags(parser: ArgumentParser) -> None:
    """Add the number of iterations and the place of the results."""
    _add_counts(
        parser,
        ("--num-iters-warmup", 1, "iterations that are not counted"),
        ("--num-iters", 5, "counted iterations"),
    )
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the results here")


def _add_counts(parser: ArgumentParser, *counts: tuple[str, int, str]) -> None:
    for flag, default, text in counts:
        parser.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{text} (default: {default})"
        )


def check_flags(args: Namespace, *names: str) -> None:
    """Refuse counts that measure nothing, and a file that results could not be written to.

    Raises:
        ConfigError: A named count is below 1, the warm-up is negative, or the file is impossible.
    """
    for name, low in (*((name, 1) for name in names), ("num_iters", 1), ("num_iters_warmup", 0)):
        if getattr(args, name) < low:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} must be at least {low}, not {getattr(args, name)}")
    check_output(args.output_json)


def check_output(path: Path | None) -> None:
    """Refuse a file that results could not be written to, before anything is measured.

    Raises:
        ConfigError: It is a directory, or its directory cannot be written to.
    """
    if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
        raise ConfigError(f"cannot write {path}: give a file in a directory that can be written to")


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write what was measured as JSON.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def open_for(args: Namespace) -> Iterator[LLM]:
    """Open the engine for a workload of token ids.

    Raises:
        ConfigError: A count is below 1, or the requests are longer than the model takes.
    """
    check_flags(args, "input_len", "output_len", "num_prompts")
    check_length(args)
    with open_llm(args, skip_tokenizer_init=True) as llm:
        yield llm


def check_length(args: Namespace) -> None:
    """Refuse requests that are longer than the model takes, before its weights are loaded.

    Raises:
        ConfigError: They are, or the engine cannot be built as asked.
    """
    config = engine_config(args, skip_tokenizer_init=True)
    length, longest = args.input_len + args.output_len, config.max_model_len
    if longest is None:
        from hotshoe.engine.start.setup import prepare

        longest = prepare(config).config.max_model_len
    if length > longest:
        raise ConfigError(
            f"--input-len and --output-len make {length} tokens, "
            f"but max_model_len is {longest}; lower one of the two"
        )


def run(
    kind: str,
    args: Namespace,
    measure: Callable[[LLM, Namespace, random.Random], Mapping[str, float]],
) -> int:
    """Measure a workload of token ids as often as asked, report it, and return the exit code."""
    with open_for(args) as llm:
        rng = random.Random(llm.config.seed)
        report(kind, args, asdict(llm.config), iterate(args, lambda: measure(llm, args, rng)))
    return 0


def random_prompts(llm: LLM, args: Namespace, rng: random.Random) -> list[TokensPrompt]:
    """Make the prompts of one iteration."""
    vocab_size = llm.engine.core.info.vocab_size
    return [
        TokensPrompt([rng.randrange(vocab_size) for _ in range(args.input_len)])
        for _ in range(args.num_prompts)
    ]


def fixed_length(output_len: int) -> SamplingParams:
    """Return parameters that generate exactly this many tokens."""
    return SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)


def iterate(
    args: Namespace, measure: Callable[[], Mapping[str, float]]
) -> list[Mapping[str, float]]:
    """Run warm-up and counted iterations; return what the counted ones measured."""
    total = args.num_iters_warmup + args.num_iters
    results = []
    for done in range(total):
        show_progress(done, total)
        results.append(measure())
    show_progress(total, total)
    return results[args.num_iters_warmup :]


def show_progress(done: int, total: int) -> None:
    """Draw a bar on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        filled = BAR_WIDTH * done // total
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        print(f"\r[{bar}] {done}/{total}", end="\n" if done == total else "", file=sys.stderr)


def report(
    kind: str,
    args: Namespace,
    engine: Mapping[str, Any],
    iterations: list[Mapping[str, float]],
) -> None:
    """Print medians and spread, and write all of it to `--output-json`.

    Raises:
        ConfigError: The file cannot be written.
    """
    columns = {name: [values[name] for values in iterations] for name in iterations[0]}
    median = {name: statistics.median(values) for name, values in columns.items()}
    rows = [(name, median[name], min(v), max(v)) for name, v in columns.items()]
    print(table((kind, "median", "lowest", "highest"), rows))
    if args.output_json is None:
        return
    sizes = ("input_len", "output_len", "num_prompts", "num_iters", "num_iters_warmup")
    result = {
        "benchmark": kind,
        "hotshoe": __version__,
        "workload": {name: getattr(args, name) for name in sizes if hasattr(args, name)},
        "engine": dict(engine),
        "median": median,
        "iterations": [dict(values) for values in iterations],
    }
    write_results(args.output_json, result)
