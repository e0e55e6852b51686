"""Processes of ours: the channel, and no interrupt from the keyboard."""

import signal
import subprocess
import sys

from hotshoe.engine.wire.spawn import spawn

ECHO = """
import os, signal, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
channel.sendall(channel.recv(100) + sys.argv[2].encode())
os.kill(os.getpid(), signal.SIGINT)
channel.sendall(b"alive")
channel.recv(1)
"""


def test_it_talks_and_is_not_interrupted() -> None:
    process, channel = spawn([sys.executable, "-c", ECHO], ["more"])
    with process, channel:
        process.send_signal(signal.SIGINT)  # in its very first moment
        channel.sendall(b"hello ")
        received = b""
        while not received.endswith(b"alive"):
            part = channel.recv(100)
            assert part, received
            received += part
        assert received == b"hello morealive"
        assert process.poll() is None
        channel.close()
        assert process.wait(60) == 0


def test_the_owner_can_still_be_interrupted() -> None:
    process, channel = spawn([sys.executable, "-c", "pass"], stdin=subprocess.PIPE)
    with process, channel:
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        assert process.stdin is not None
        assert process.wait(60) == 0
