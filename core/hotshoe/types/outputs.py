"""What the engine core gives back, token by token. What callers get of it is in `results`."""

from dataclasses import dataclass
from enum import Enum


class FinishReason(str, Enum):
    """Why a sequence ended. `ERROR` carries its cause in the output's `error`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, natural log, of the unmodified model distribution.

    `token_ids[0]` is the sampled (or prompt) token and `rank` its 1-based rank; the others are
    the most likely tokens, best first (the chosen one can appear twice), and `logprob_token_ids`.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int


@dataclass(slots=True)
class TokenOutput:
    """New tokens of one request from one step, as the engine core emits them.

    `scheduled_s` is when it first got a row, in `time.monotonic()` seconds. `pooled` is the vector
    of a request that pools, as in `StepResult`.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    scheduled_s: float = 0.0
    pooled: bytes | None = None
