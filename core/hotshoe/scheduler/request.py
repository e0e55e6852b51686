"""One request's state while the scheduler owns it.

Written by the scheduler alone, except for the three block fields, which the KV cache manager
writes. It refers to nothing that refers back to it, so a finished request is freed at once.
"""

from enum import Enum

from hotshoe.types.outputs import TokenLogprobs
from hotshoe.types.sampling_params import SamplingParams


class RequestStatus(Enum):
    """Where a request is. A preempted request waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """One sequence to be continued.

    Args:
        request_id: Unique among unfinished requests.
        prompt_token_ids: The prompt; copied.
        params: How to sample and when to end; `n` has been dealt with by the engine.
        seed: Seed of this request's random draws.
        priority: Lower is served first, under the priority policy.
        cache_salt: Only requests with equal salt share cached prefixes.
        eos_token_ids: The model's end-of-sequence ids; they end the request unless
            `params.ignore_eos`.

    Attributes:
        token_ids: Prompt, then the generated tokens that are known.
        num_computed_tokens: Leading tokens whose computation has been scheduled. While running it
            may pass `len(token_ids)`: then the tokens between are sampled but not yet known.
        fast_until: While `num_computed_tokens` is below this, a step simply computes one more
            token: the row decodes, its blocks suffice and its length limit is not reached.
        num_pending_tokens: Of a preempted request: sampled tokens that are still to be reported.
        order: Sort key of service and, reversed, of preemption.
        max_total_tokens: Length at which the request ends.
        num_cached_tokens: Prompt tokens found in the prefix cache at the first admission.
        prompt_logprobs: Those collected so far, position 0 being None; None when they were not
            asked for or have been delivered.
    """

    __slots__ = (
        "__weakref__",
        "block_hashes",
        "block_ids",
        "cache_salt",
        "fast_until",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_pending_tokens",
        "num_prompt_tokens",
        "num_registered_blocks",
        "order",
        "params",
        "priority",
        "prompt_logprobs",
        "request_id",
        "row",
        "seed",
        "status",
        "stop_token_ids",
        "token_ids",
        "was_preempted",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        seed: int = 0,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.request_id = request_id
        self.params = params
        self.seed = seed
        self.priority = priority
        self.cache_salt = cache_salt
        self.stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.stop_token_ids |= eos_token_ids
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.max_total_tokens = 0
        self.order = (0, 0)
        self.status = RequestStatus.WAITING
        self.row: int | None = None
        self.num_computed_tokens = 0
        self.fast_until = 0
        self.num_pending_tokens = 0
        self.num_cached_tokens = 0
        self.was_preempted = False
        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_registered_blocks = 0
        wanted = params.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            [None] if wanted else None
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of a running request, counting sampled ones that are not known yet."""
        return max(len(self.token_ids), self.num_computed_tokens + 1)

    def add_prompt_logprobs(self, first: int, chunk: list[TokenLogprobs]) -> None:
        """Collect those of prompt positions `first`, `first + 1`, ...; known ones are skipped.

        Positions repeat when a prompt is computed again after a preemption.
        """
        if self.prompt_logprobs is not None:
            assert first <= len(self.prompt_logprobs), "prompt positions were left out"
            self.prompt_logprobs.extend(chunk[len(self.prompt_logprobs) - first :])
