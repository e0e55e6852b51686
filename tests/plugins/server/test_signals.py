"""Signals in every phase: before, while and after a loop runs."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, sys
import uvloop
from hotshoe.cli.main import main
from hotshoe.foreign import foreign
from hotshoe_server import command
from hotshoe_server.extensions import blamed
from hotshoe_server.signals import end_at_sigterm, signals_call

def hit(number):
    os.kill(os.getpid(), number)

async def run():
    stop = asyncio.Event()
    with signals_call(stop.set):
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().call_later(0.05, hit, number)
            await asyncio.wait_for(stop.wait(), 60)
            stop.clear()
    hit(signal.SIGTERM)
    hit(signal.SIGINT)

end_at_sigterm()
if sys.argv[1] == "early":
    hit(signal.SIGTERM)
if sys.argv[1] == "guarded":
    with foreign():
        hit(signal.SIGTERM)
if sys.argv[1] == "command":
    def find(plugins):
        with blamed("a test"):
            hit(signal.SIGTERM)

    command.find_extensions = find
    sys.exit(main(["serve"]))
factory = uvloop.new_event_loop if sys.argv[1] == "uvloop" else asyncio.new_event_loop
with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(run())
hit(signal.SIGTERM)
hit(signal.SIGINT)
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("when", "code"), [("early", 0), ("guarded", 0), ("command", 0), ("uvloop", 7), ("asyncio", 7)]
)
def test_signals(when: str, code: int) -> None:
    words = [sys.executable, "-c", PROGRAM, when]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")
