"""Times of a streamed answer: to the first token, and per token after it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotshoe.text.output_processor import RequestUpdate


class Stopwatch:
    """Passes a stream of updates on, and keeps the time.

    Attributes:
        first_s: Seconds to the first token, or None before it.
        total_s: Seconds to the latest update.
        num_tokens: Tokens so far, over all sequences.
    """

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.total_s = 0.0
        self.num_tokens = 0
        self._first_tokens = 0

    def watch(self, updates: Iterable[RequestUpdate]) -> Iterator[RequestUpdate]:
        """Yield every update, noting when it came."""
        begin = time.perf_counter()
        for update in updates:
            self.total_s = time.perf_counter() - begin
            self.num_tokens += sum(len(sequence.new_token_ids) for sequence in update.sequences)
            if self.first_s is None and self.num_tokens:
                self.first_s, self._first_tokens = self.total_s, self.num_tokens
            yield update

    @property
    def per_token_ms(self) -> float | None:
        """Milliseconds per token after the first, or None when there was only one step."""
        later = self.num_tokens - self._first_tokens
        if self.first_s is None or later <= 0:
            return None
        return 1e3 * (self.total_s - self.first_s) / later

    def summary(self) -> str:
        """Say it in one line."""
        if self.first_s is None:
            return "no token"
        plural = "" if self.num_tokens == 1 else "s"
        text = f"{self.num_tokens} token{plural} in {self.total_s:.2f} s: "
        text += f"the first after {1e3 * self.first_s:.0f} ms"
        return (
            text if self.per_token_ms is None else f"{text}, then {self.per_token_ms:.1f} ms each"
        )
