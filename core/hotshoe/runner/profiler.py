"""Records what the thread that steps computes, operation by operation, as a trace for a browser.

Made at the first use; until then nothing is paid. Start and stop come from the thread that steps.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from hotshoe.errors import RequestError


class Profiler:
    """Traces, one after the other.

    Args:
        rank: Of this worker; part of the files' names.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._path = Path()
        self._profile: torch.profiler.profile | None = None

    def start(self, folder: Path) -> None:
        """Begin to record.

        Args:
            folder: Where `stop` writes the trace; made if it is missing.

        Raises:
            RequestError: A recording is under way, or the folder cannot be made.
        """
        if self._profile is not None:
            raise RequestError("a profile is being recorded already; stop it first")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(f"the profile's folder cannot be made: {error.strerror}") from None
        self._path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-rank{self._rank}.json.gz"
        # Of everything that this build can observe; the stack names what is no torch operation.
        profile = torch.profiler.profile(with_stack=True)
        profile.start()
        self._profile = profile

    def stop(self) -> Path:
        """Write the trace, in the form of Chrome's trace viewer; return where it is.

        Raises:
            RequestError: None is being recorded.
        """
        profile, self._profile = self._profile, None
        if profile is None:
            raise RequestError("no profile is being recorded; start one first")
        profile.stop()
        profile.export_chrome_trace(str(self._path))
        return self._path
