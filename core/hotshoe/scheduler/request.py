"""One request's state while the scheduler owns it.

Written by the scheduler alone, except for the four block fields, which the KV coordinator
writes. It refers to nothing that refers back to it, so a finished request is freed at once.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field

from hotshoe.errors import RequestError
from hotshoe.kv import KVCoordinator, Tables
from hotshoe.scheduler.config import SchedulerConfig
from hotshoe.types.outputs import TokenLogprobs
from hotshoe.types.pooling import Pooling
from hotshoe.types.sampling_params import SamplingParams


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """One sequence to be continued. The caller gives the fields down to `eos_token_ids`.

    Attributes:
        request_id: Unique among unfinished requests.
        token_ids: The prompt, which is copied; generated tokens are appended as they become known.
        params: How to sample and when to end; `n` has been dealt with by the engine.
        seed: Seed of this request's random draws.
        priority: Lower is served first, under the priority policy.
        cache_salt: Only requests with equal salt and tenant share cached prefixes.
        tenant: Whose request this is.
        pooling: What it wants instead of tokens; then nothing is sampled, and it ends with its
            prompt.
        embeds: Rows that the first token ids stand for, as in `NewRow`.
        eos_token_ids: The model's end-of-sequence ids; they end the request unless
            `params.ignore_eos`.
        content: Names what token ids do not: only requests of equal content share prefixes.
        adapter_key: Names the adapter's weights, for the same purpose. Written by the engine.
        max_total_tokens: Length at which the request ends.
        order: Sort key of service and, reversed, of preemption.
        row: Its row while it runs; None while it waits, be it anew or again.
        num_computed_tokens: Of a running request: leading tokens whose computation has been
            scheduled. Where it passes `len(token_ids)`, tokens are sampled but not yet known.
        stepwise: It is planned only when all its tokens are known: one with a grammar always, any
            other while it has drafts.
        in_turns: It is stepwise whatever it has.
        drafts: Tokens that may follow the known ones; see `propose`.
        draft_masks: Where there is a mask: those behind each of the drafts.
        parents: Of a request whose drafts are a tree: the parent of each.
        num_accepted: Drafts accepted in its last step, of which the worker is still to be told.
        fast_until: While `num_computed_tokens` is below this, a step computes one more
            token: the row decodes, its blocks suffice and its length limit is not reached.
        num_pending_steps: Of a preempted request: steps whose tokens are still to be reported.
        ready: It may be run; one with a grammar may not before that is compiled.
        held: It was added while the scheduler held requests back, and waits for `release`.
        queued_s: When it was added, in `time.monotonic()` seconds.
        scheduled_s: When it first got a row, in the same clock; 0 before.
        mask: Of a request with a grammar: the tokens that may come next, as in `StepPlan.masks`;
            None while any may. Written by the engine whenever a token becomes known.
        num_cached_tokens: Prompt tokens found in the prefix cache at the first admission.
        prompt_logprobs: Those collected so far, position 0 being None; None when they were not
            asked for or have been delivered.
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    seed: int = 0
    priority: int = 0
    cache_salt: str | None = None
    tenant: str | None = None
    pooling: Pooling | None = None
    embeds: bytes | None = None
    eos_token_ids: InitVar[frozenset[int]] = frozenset()
    content: str | None = field(init=False, default=None)
    adapter_key: str | None = field(init=False, default=None)
    stop_token_ids: frozenset[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    max_total_tokens: int = field(init=False, default=0)
    order: tuple[int, int] = field(init=False, default=(0, 0))
    row: int | None = field(init=False, default=None)
    num_computed_tokens: int = field(init=False, default=0)
    fast_until: int = field(init=False, default=0)
    num_pending_steps: int = field(init=False, default=0)
    stepwise: bool = field(init=False, default=False)
    in_turns: bool = field(init=False, default=False)
    drafts: list[int] = field(init=False, default_factory=list)
    draft_masks: list[bytes] = field(init=False, default_factory=list)
    parents: tuple[int, ...] = field(init=False, default=())
    num_accepted: int = field(init=False, default=0)
    ready: bool = field(init=False, default=True)
    held: bool = field(init=False, default=False)
    mask: bytes | None = field(init=False, default=None)
    queued_s: float = field(init=False, default=0.0)
    scheduled_s: float = field(init=False, default=0.0)
    num_cached_tokens: int = field(init=False, default=0)
    was_preempted: bool = field(init=False, default=False)
    finished: bool = field(init=False, default=False)
    tables: Tables = field(init=False, default_factory=list)
    num_released: list[int] = field(init=False, default_factory=list)
    block_hashes: list[bytes] = field(init=False, default_factory=list)
    num_registered_blocks: int = field(init=False, default=0)
    prompt_logprobs: list[TokenLogprobs | None] | None = field(init=False, default=None)

    def __post_init__(self, eos_token_ids: frozenset[int]) -> None:
        self.token_ids = list(self.token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        if self.embeds is not None:
            self.content = hashlib.sha256(self.embeds).hexdigest()
        self.stepwise = self.params.grammar is not None
        self.stop_token_ids = frozenset(self.params.stop_token_ids)
        if not self.params.ignore_eos:
            self.stop_token_ids |= eos_token_ids
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    @property
    def reads_whole_prompt(self) -> bool:
        """Whether every hidden state of the prompt is looked at, so that none may come cached."""
        pools = self.pooling is not None and self.pooling.kind != "last"
        return pools or self.prompt_logprobs is not None

    @property
    def num_tokens(self) -> int:
        """Tokens of a running request, counting sampled ones that are not known yet."""
        return max(len(self.token_ids), self.num_computed_tokens + 1)

    def propose(self, drafts: list[int], masks: Sequence[bytes] = ()) -> None:
        """Let the next step verify tokens that may follow the known ones; none lets it go on fast.

        To be called for every request that may have drafts whenever tokens of it become known.

        Args:
            drafts: Tokens.
            masks: Of a request with a mask: the tokens that may come behind each draft.
        """
        assert self.mask is None or len(masks) == len(drafts)
        self.drafts, self.draft_masks = drafts, list(masks)
        if drafts:
            self.fast_until = 0
        self.stepwise = self.in_turns or bool(drafts) or self.params.grammar is not None

    def up_to_stop(self, tokens: list[int]) -> list[int]:
        """Return new tokens up to the first that ends the request, be it one of them or not."""
        before = len(self.token_ids) - self.num_prompt_tokens
        for count, token in enumerate(tokens, start=1):
            if token in self.stop_token_ids and before + count > self.params.min_tokens:
                return tokens[:count]
        return tokens

    def add_prompt_logprobs(self, first: int, chunk: list[TokenLogprobs]) -> None:
        """Collect those of prompt positions `first`, `first + 1`, ...; known ones are skipped.

        Positions repeat when a prompt is computed again after a preemption.
        """
        if self.prompt_logprobs is not None:
            assert first <= len(self.prompt_logprobs), "prompt positions were left out"
            self.prompt_logprobs.extend(chunk[len(self.prompt_logprobs) - first :])


def length_limit(request: Request, config: SchedulerConfig, cache: KVCoordinator) -> int:
    """Return the length, in tokens, at which a request ends.

    Raises:
        RequestError: It could not be served even if it were alone.
    """
    length = request.num_prompt_tokens
    step = config.max_num_batched_tokens if config.num_blocks == () else config.max_model_len
    room = min(step, config.max_model_len) - (request.pooling is None)
    if not 0 < length <= room:  # a front end that checks its prompts says more
        raise RequestError(f"the prompt has {length} tokens, not 1 to {room}", "prompt")
    limit = min(room + 1, length + (request.params.max_tokens or config.max_model_len))
    # The last token is never computed, so it needs no place.
    shortage = cache.shortage(limit - 1)
    if shortage is not None:
        raise RequestError(
            f"{length} prompt tokens and up to {limit - length} generated ones need "
            f"{shortage[0]} KV cache blocks of {config.block_size} tokens, but there are "
            f"{shortage[1]}; shorten the prompt or lower max_tokens",
            "max_tokens",
        )
    return limit


def lacks_place(request: Request, running: Iterable[Request], config: SchedulerConfig) -> bool:
    """Tell whether so many other adapters run that a request's own must wait for one to end."""
    adapter = request.params.adapter
    if adapter is None:
        return False
    others = {other.params.adapter for other in running} - {None, adapter}
    return len(others) >= config.max_adapters
