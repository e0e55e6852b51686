"""Finds the place in a text's tokens where one pattern has come so often that the text shall end.

For each length of a pattern it counts how many tokens in a row are equal to the one so far before
them, which takes one comparison a length and token. Used by `OutputProcessor`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hotshoe.errors import RequestError
from hotshoe.types import FinishReason, TokenOutput

#: As vLLM says why such a text ended.
REASON = "repetition_detected"
#: vLLM's name of each number -> the least and the largest one.
BOUNDS = {"max_pattern_size": (1, 512), "min_pattern_size": (1, 512), "min_count": (2, 2**16)}


def check_repetition(wanted: tuple[int, int, int]) -> None:
    """Refuse what cannot be looked for.

    Raises:
        RequestError: `SamplingParams.repetition_detection` is no such numbers.
    """
    if not isinstance(wanted, (tuple, list)) or len(wanted) != len(BOUNDS):
        message = f"repetition_detection is three numbers, not {wanted!r}"
        raise RequestError(message, "repetition_detection")
    for (name, (low, high)), value in zip(BOUNDS.items(), wanted, strict=True):
        high = min(high, wanted[0]) if name == "min_pattern_size" else high
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            message = f"repetition_detection.{name} must be {low} to {high}, not {value!r}"
            raise RequestError(message, "repetition_detection")


class RepetitionMatcher:
    """Follows one sequence.

    Args:
        wanted: Which repetitions end it, as `SamplingParams.repetition_detection`.
        min_tokens: It does not end before it has so many.
    """

    def __init__(self, wanted: tuple[int, int, int], min_tokens: int) -> None:
        longest, shortest, min_count = wanted
        sizes = range(shortest, longest + 1)
        self._skipped = shortest - 1
        self._tail: deque[int] = deque(maxlen=longest)  # the newest first
        self._runs = [0] * len(sizes)
        self._enough = [size * (min_count - 1) for size in sizes]
        self._left = min_tokens

    def cut(self, output: TokenOutput) -> TokenOutput:
        """Return an output up to the token that ends the text, or as it is."""
        for count, token in enumerate(output.token_ids, start=1):
            last = count == len(output.token_ids)
            if self._push(token) and not (last and output.finish_reason is not None):
                return replace(
                    output,
                    token_ids=output.token_ids[:count],
                    finish_reason=FinishReason.REPETITION,
                    stop_token_id=None,
                )
        return output

    def _push(self, token: int) -> bool:
        """Take a token; tell whether the text shall end with it."""
        earlier = list(self._tail)[self._skipped :]
        equal = [n + 1 if old == token else 0 for n, old in zip(self._runs, earlier, strict=False)]
        self._runs[: len(equal)] = equal
        self._tail.appendleft(token)
        self._left -= 1
        return self._left <= 0 and any(map(int.__ge__, equal, self._enough))
