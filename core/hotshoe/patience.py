"""Says whom start-up waits for: foreign code may hang, and nobody could tell where.

It stops nobody: a driver or a compiler may have a reason to take its time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOG = logging.getLogger(__name__)
PATIENCE_S = 10.0


@contextmanager
def patience(whom: str) -> Iterator[None]:
    """Name who is waited for, once, where that takes long."""
    words = ("waiting for %s, %g s so far", whom, PATIENCE_S)
    timer = threading.Timer(PATIENCE_S, LOG.warning, words)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
