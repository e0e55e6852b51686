"""What callers get: a request with its sequences, their text and times."""

from dataclasses import dataclass, field

from hotshoe.types.outputs import FinishReason, TokenLogprobs


@dataclass(slots=True)
class RequestTiming:
    """When things happened to a request, in `time.monotonic()` seconds; 0 means not yet.

    Attributes:
        arrival_s: The front end took it in.
        scheduled_s: Its first sequence got a row, after waiting in the queue.
        first_token_s: A step brought its first token.
        last_token_s: The last step that brought one, so far.
    """

    arrival_s: float = 0.0
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0


@dataclass(slots=True)
class CompletionOutput:
    """One of the `n` sequences of a request. `stop_reason` is the stop string or token id hit."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """Everything known of one request. While streaming, `text` and `token_ids` are cumulative.

    `embedding` is the vector that a request with `PoolingParams` ends with, of whichever task; such
    a request has no text and no tokens.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    finished: bool = False
    timing: RequestTiming = field(default_factory=RequestTiming)
    embedding: list[float] | None = None
