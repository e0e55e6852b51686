"""What a subcommand is: an entry that the help lists, and the object that it names.

Hook `hotshoe_commands` gives `{"name": CommandEntry(...)}`. A name may have two words, as
`bench latency` has; the first word alone then lists the group.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One subcommand.

    Attributes:
        target: `"module:Class"` of a `Command`, imported only when the command is called.
        help: One line.
        imports: Modules that `run` imports, for a process that does so before it is asked to run.
    """

    target: str
    help: str
    imports: Sequence[str] = ()


class Command(Protocol):
    """A subcommand, made without arguments when it is called."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare flags and positional arguments; light imports only, for `--help` runs this."""
        ...

    def run(self, args: Namespace) -> int:
        """Do the work and return the process's exit code.

        Raises:
            UserError: Printed as one line; exit code 2.
            EngineError: Printed as one line; exit code 1.
        """
        ...
