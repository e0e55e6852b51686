"""The `hotshoe` program, also as `python -m hotshoe.cli`: answers Ctrl-C quietly at any time, and
takes standard streams as they are.

While modules are imported there is nothing to put in order, and an exception would surface in
strange places; at the end nobody is left to catch it.
"""

import faulthandler
import gc
import os
import signal
import sys


def run() -> int:
    """Run the command line, by a keeper where there is one, and return its exit code."""
    heeded = begin()
    from hotshoe.cli.keeper.client import run_forked

    code = run_forked(sys.argv[1:])
    return run_here(heeded) if code is None else code


def begin() -> bool:
    """Let signals end the process without a word; return whether the keyboard's is heeded."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in background jobs
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["serve"]:  # which is ended so, and that is no failure, however early
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    return heeded


def run_here(heeded: bool) -> int:
    """Run the command line in this process and return its exit code.

    Args:
        heeded: From `begin`.
    """
    _ready_streams()
    faulthandler.enable()  # a kernel that takes the process down shows where it was called
    from hotshoe.cli.main import main
    from hotshoe.host import end_with_command

    end_with_command()
    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # the end of Python looks for garbage several times, which takes a second


def _ready_streams() -> None:
    """Let nothing depend on what standard output and error were given: neither on their being
    there at all, nor on their encoding's having every character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif stream.errors == "strict":
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(run())
