"""`hotshoe chat`: a conversation on the terminal, or the turns that `-p` gives.

The whole conversation is rendered anew for every turn by the model's chat template; the prefix
cache keeps that cheap. Tool calls are printed as the model writes them, not run.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.cli.generate import add_output_flags, document, print_stream
from hotshoe.cli.grammar import add_grammar_flags, grammar_spec
from hotshoe.cli.options import (
    add_engine_flags,
    add_sampling_flags,
    engine_config,
    sampling_params,
)
from hotshoe.cli.session import failures, open_llm, report_failures, say
from hotshoe.cli.stopwatch import Stopwatch
from hotshoe.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from hotshoe.engine.api.llm import LLM
    from hotshoe.types import RequestOutput, SamplingParams

RESET = "/reset"


class Chat:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-p",
            "--prompt",
            nargs="+",
            action="extend",
            metavar="TEXT",
            help="say this, turn by turn, and end; default: read turns from standard input",
        )
        parser.add_argument("--system", metavar="TEXT", help="system message")
        parser.add_argument("--tools", type=Path, metavar="FILE", help="JSON list of tools")
        add_output_flags(parser)
        add_engine_flags(parser)
        add_sampling_flags(parser)
        add_grammar_flags(parser)

    def run(self, args: Namespace) -> int:
        grammar = grammar_spec(args)
        sampling_params(args, grammar=grammar)
        engine_config(args)  # a bad option is found before the engine's modules load
        tools = read_tools(args.tools) if args.tools else None
        opening = [{"role": "system", "content": args.system}] if args.system else []
        messages = list(opening)
        reasons: list[str] = []
        with open_llm(args, quiet=args.quiet) as llm:
            params = sampling_params(args, llm.sampling_defaults, grammar=grammar)
            for turn in turns(args.prompt):
                if turn == RESET:
                    messages = list(opening)
                    continue
                question = {"role": "user", "content": turn}
                try:
                    output = answer(llm, args, [*messages, question], params, tools)
                except RequestError as error:
                    if args.prompt or not sys.stdin.isatty():
                        raise
                    say(f"hotshoe: error: {error} ({RESET} starts anew)")
                    continue
                messages += [question, {"role": "assistant", "content": output.outputs[0].text}]
                reasons += failures([output])
        return report_failures(reasons)


def answer(
    llm: LLM,
    args: Namespace,
    messages: list[dict[str, str]],
    params: SamplingParams,
    tools: list[dict[str, Any]] | None,
) -> RequestOutput:
    """Print the answer to a conversation as it comes, or as JSON."""
    clock = Stopwatch()
    updates = clock.watch(llm.stream_chat(messages, params, tools))
    if args.json:
        output = list(updates)[-1].output()
        print(document(llm, [output], clock.total_s), flush=True)
    else:
        output = print_stream(updates)
    if not args.quiet:
        say(clock.summary())
    return output


def turns(given: list[str] | None) -> Iterator[str]:
    """Yield what the user says: the given turns, else lines of standard input until its end."""
    if given:
        yield from given
        return
    if sys.stdin.isatty():
        import readline  # noqa: F401  gives input() line editing

        say(f"an empty line or Ctrl-D ends, {RESET} starts anew")
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if not line.strip():
            return
        yield line


def read_tools(path: Path) -> list[dict[str, Any]]:
    """Read tool declarations as the chat completions API takes them.

    Raises:
        ConfigError: The file is unreadable or not a JSON list of objects.
    """
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ConfigError(f"{path} must hold a JSON list of tools")
    return tools
