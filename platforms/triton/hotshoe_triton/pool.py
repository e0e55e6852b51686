"""What every process of a pool does first: it sees to it that it ends with who made the pool."""

from __future__ import annotations

import os
import threading
from multiprocessing import parent_process


def end_with_parent() -> None:
    """Let this process end when its parent has gone; the initializer of every pool.

    By itself it would wait for work for ever, as it holds both ends of the pipe that brings it.
    """
    parent = parent_process()
    assert parent is not None, "this is no process of a pool"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="hotshoe-owner", daemon=True).start()
