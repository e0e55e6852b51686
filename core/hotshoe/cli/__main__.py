"""The `hotshoe` program, also as `python -m hotshoe.cli`: answers Ctrl-C quietly at any time.

While modules are imported there is nothing to put in order, and an exception would surface in
strange places; at the end nobody is left to catch it.
"""

import faulthandler
import os
import signal
import sys


def run() -> int:
    """Run the command line and return its exit code."""
    faulthandler.enable()  # a kernel that takes the process down shows where it was called
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in background jobs
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["serve"]:  # which is ended so, and that is no failure, however early
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    from hotshoe.cli.main import main

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(run())
