"""`hotshoe generate`: continue prompts. One prompt streams; several run as a batch."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from hotshoe.cli.grammar import add_grammar_flags, grammar_spec
from hotshoe.cli.options import (
    add_engine_flags,
    add_sampling_flags,
    engine_config,
    sampling_params,
)
from hotshoe.cli.session import failures, open_llm, report_failures, say
from hotshoe.cli.stopwatch import Stopwatch
from hotshoe.errors import ConfigError

if TYPE_CHECKING:
    from hotshoe.engine.api.llm import LLM
    from hotshoe.text.output_processor import RequestUpdate
    from hotshoe.types import RequestOutput, SamplingParams


class Generate:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-p",
            "--prompt",
            nargs="+",
            action="extend",
            metavar="TEXT",
            help="what to continue; default: standard input",
        )
        add_output_flags(parser)
        add_engine_flags(parser)
        add_sampling_flags(parser)
        add_grammar_flags(parser)

    def run(self, args: Namespace) -> int:
        prompts = args.prompt or read_stdin()
        grammar = grammar_spec(args)
        sampling_params(args, grammar=grammar)
        engine_config(args)  # a bad option is found before the engine's modules load
        with open_llm(args, quiet=args.quiet) as llm:
            params = sampling_params(args, llm.sampling_defaults, grammar=grammar)
            begin = time.perf_counter()
            if len(prompts) == 1 and params.n == 1 and not args.json:
                outputs = [stream_one(llm, prompts[0], params, args.quiet)]
            else:
                outputs = llm.generate(prompts, params)
                seconds = time.perf_counter() - begin
                print(document(llm, outputs, seconds) if args.json else readable(prompts, outputs))
                if not args.quiet:
                    say(batch_summary(outputs, seconds))
        return report_failures(failures(outputs))


def add_output_flags(parser: ArgumentParser) -> None:
    """Add what `generate` and `chat` share."""
    parser.add_argument("--json", action="store_true", help="print one JSON document, for programs")
    parser.add_argument("-q", "--quiet", action="store_true", help="no report on stderr")


def read_stdin() -> list[str]:
    """Take standard input as the prompt.

    Raises:
        ConfigError: It is a terminal, empty, or not text.
    """
    try:
        text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not {error.encoding} text: {error.reason}") from None
    if not text:
        raise ConfigError("nothing to continue; give -p TEXT, or a prompt on standard input")
    return [text]


def stream_one(llm: LLM, prompt: str, params: SamplingParams, quiet: bool) -> RequestOutput:
    """Print a continuation as it comes."""
    clock = Stopwatch()
    last = print_stream(clock.watch(llm.stream(prompt, params)))
    if not quiet:
        say(clock.summary())
    return last


def print_stream(updates: Iterable[RequestUpdate]) -> RequestOutput:
    """Print the text of each update as it comes, then end the line; return the whole output."""
    update: RequestUpdate | None = None
    for update in updates:
        print(update.sequences[0].new_text, end="", flush=True)
    print(flush=True)
    assert update is not None, "a stream ends with a finished update"
    return update.output()


def readable(prompts: Sequence[str], outputs: Sequence[RequestOutput]) -> str:
    """Return prompts and continuations for people."""
    lines = []
    for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True), 1):
        lines.append(f"[{number}] {prompt}")
        lines += [sequence.text for sequence in output.outputs]
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def document(llm: LLM, outputs: Sequence[RequestOutput], seconds: float) -> str:
    """Return everything as one JSON document."""
    return json.dumps(
        {
            "model": llm.config.model,
            "platform": llm.config.platform,
            "startup_s": dict(llm.startup),
            "generate_s": seconds,
            "requests": [asdict(output) for output in outputs],
        },
        ensure_ascii=False,
    )


def batch_summary(outputs: Sequence[RequestOutput], seconds: float) -> str:
    """Say how many tokens came in which time."""
    tokens = sum(len(sequence.token_ids) for output in outputs for sequence in output.outputs)
    rate = tokens / seconds if seconds > 0 else 0.0
    prompts = "1 prompt" if len(outputs) == 1 else f"{len(outputs)} prompts"
    return f"{prompts}, {tokens} tokens in {seconds:.2f} s: {rate:.1f} tokens/s"
