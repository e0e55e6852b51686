"""What a front end sees of an engine, be it in this process or in another one.

`AsyncEngine` is the implementation; a server needs nothing beyond this page. It is three
contracts in one, for those that need less: `EngineStatus`, `EngineControl` and `EngineWeights`. All
times are `time.monotonic()` seconds, which processes of one machine share. Standard library only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hotshoe.config import ResolvedConfig
from hotshoe.platform import Change, DeviceFacts
from hotshoe.types.arguments import Argument
from hotshoe.types.classes import Classifier
from hotshoe.types.experts import ExpertCounts
from hotshoe.types.instructions import Instructions
from hotshoe.types.late import LateInteraction
from hotshoe.types.pooling import Pooling

if TYPE_CHECKING:
    from hotshoe.loader.sources import Weights
    from hotshoe.text.output_processor import RequestUpdate
    from hotshoe.text.tokenizer import Tokenizer
    from hotshoe.types import PoolingParams, Prompt, SamplingParams

PauseMode = Literal["abort", "wait", "keep"]
SleepMode = Literal["keep", "wait", "abort"]
#: Steps are counted by their tokens, up to each of these.
STEP_SIZES = (1, 8, *(2**power for power in range(4, 15)))


@dataclass(frozen=True, slots=True)
class DecisionInfo:
    """Which candidate serves a specification of a slot, as text; `others` maps names to reasons."""

    slot: str
    spec: str
    chosen: str
    native: bool
    reason: str = ""
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is made of, fixed when it started.

    Attributes:
        config: Resolved: nothing is undecided.
        model_path: The model directory.
        vocab_size: Width of the logits; token ids lie below it.
        num_blocks: Blocks of the KV cache, of `config.block_size` tokens each.
        eos_token_ids: Of model and tokenizer together.
        facts: The device.
        changes: What was decided for the user, and why.
        startup: Phases and their seconds, in order.
        memory: Bytes by purpose.
        report: What the platform says of itself, such as its thread count.
        broken_plugins: Cause by name.
        sampling_defaults: Fields of `SamplingParams` for what requests leave open.
        has_logits: As in `WorkerInfo`.
        tasks: Those that are served: "generate", "embed", "classify", "token_embed",
            "token_classify".
        hidden_size: Of the model's states; 0 where it takes no embeddings.
        vector_size, token_size: Entries of the vectors that it makes of texts, and of tokens.
        pooling: How embeddings are made; None where none is.
        classifier: What classes there are; None where there are none.
        late: How texts are compared by vectors of their tokens; None where they are not.
        instructions: What stands in front of texts to embed, and how their vectors compare.
        num_restarts: How many engines died before this one took over.
        arguments: What requests may give to logits processors.
    """

    config: ResolvedConfig
    model_path: str
    vocab_size: int
    num_blocks: int
    eos_token_ids: tuple[int, ...]
    facts: DeviceFacts
    changes: tuple[Change, ...] = ()
    decisions: tuple[DecisionInfo, ...] = ()
    startup: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    broken_plugins: Mapping[str, str] = field(default_factory=dict)
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    has_logits: bool = True
    tasks: tuple[str, ...] = ("generate",)
    hidden_size: int = 0
    vector_size: int = 0
    token_size: int = 0
    late: LateInteraction | None = None
    instructions: Instructions = field(default_factory=Instructions)
    pooling: Pooling | None = None
    classifier: Classifier | None = None
    num_restarts: int = 0
    arguments: Mapping[str, Argument] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The model as the user named it."""
        return self.config.model

    @property
    def max_model_len(self) -> int:
        """The longest sequence, prompt and output."""
        return self.config.max_model_len

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.config.block_size


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts at one moment, over all front ends of an engine.

    Attributes:
        num_running: Sequences that have a row.
        num_waiting: Sequences that wait for one, those preempted or held by a pause included.
        num_aside: Of these, sequences whose grammar is being compiled, or that a pause holds.
        num_waiting_tokens: Known tokens of those that wait.
        num_used_blocks: Blocks held by running sequences.
        num_queried_tokens: Total of tokens looked up in the prefix cache.
        num_hit_tokens: Total of these that were found.
        num_preemptions: Total.
        num_prompt_tokens: Total of prompt tokens of sequences that were started.
        num_cached_tokens: Total of these that had not to be computed.
        num_generated_tokens: Total.
        last_step_s: Duration of the last step.
        last_step_tokens: Tokens that it computed.
        num_steps_of: Totals of steps by the tokens that they computed: up to each of `STEP_SIZES`,
            and more.
        num_step_tokens: Total of tokens that steps computed.
        num_failed: Total of sequences that had no finite logits.
        num_finished: Total of ended sequences by finish reason.
        sleep_level: None while the engine is awake.
        adapters: How many sequences with an adapter wait, and how many run, by its name.
        num_drafts: Total of times that a step verified drafts of a sequence.
        num_draft_tokens: Total of these drafts.
        num_accepted_at: Totals of accepted drafts by their place, first to last.
        experts: What was done so that ranks compute equally many tokens of experts.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_aside: int = 0
    num_waiting_tokens: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_queried_tokens: int = 0
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_steps_of: tuple[int, ...] = (0,) * (len(STEP_SIZES) + 1)
    num_step_tokens: int = 0
    last_step_s: float = 0.0
    last_step_tokens: int = 0
    num_failed: int = 0
    num_finished: Mapping[str, int] = field(default_factory=dict)
    is_paused: bool = False
    sleep_level: int | None = None
    adapters: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_at: tuple[int, ...] = ()
    experts: ExpertCounts = field(default_factory=ExpertCounts)

    @property
    def num_steps(self) -> int:
        """Total of steps."""
        return sum(self.num_steps_of)

    @property
    def is_sleeping(self) -> bool:
        """Whether the engine sleeps, at any level."""
        return self.sleep_level is not None

    @property
    def num_accepted_tokens(self) -> int:
        """Total of accepted drafts."""
        return sum(self.num_accepted_at)

    @property
    def kv_cache_usage(self) -> float:
        """Share of blocks held by running sequences, 0 to 1."""
        return self.num_used_blocks / max(self.num_blocks, 1)


class EngineStatus(Protocol):
    """An engine as whoever watches it sees it."""

    @property
    def config(self) -> ResolvedConfig:
        """The resolved configuration."""
        ...

    @property
    def info(self) -> EngineInfo:
        """What the engine is made of."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, None with `skip_tokenizer_init`."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called, and no `resume` since."""
        ...

    @property
    def is_sleeping(self) -> bool:
        """Whether `sleep` was called, and no full `wake_up` since."""
        ...

    @property
    def num_restarts(self) -> int:
        """How many times the engine died and a new one took over."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the engine has ended, and no other one will take over."""
        ...

    async def stats(self) -> EngineStats:
        """Return the present counts.

        Raises:
            EngineDeadError: The engine has stopped, or does not answer.
        """
        ...

    def check_queue(self) -> None:
        """Refuse early, before a request is even read, if the engine would refuse it now.

        Raises:
            QueueFullError: Too many requests wait.
            EngineDeadError: The engine has stopped, or does not answer.
        """
        ...

    async def check_health(self) -> None:
        """Return if the engine works; sleeping and paused ones do.

        Raises:
            EngineDeadError: It has stopped, or no step has come to an end for longer than
                `config.engine_stall_timeout_s`.
        """
        ...


class EngineControl(Protocol):
    """An engine as its operator stops it, lets it go on, and looks inside."""

    async def pause(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Stop generating; return when it has. New requests are queued until `resume`.

        Args:
            mode: What becomes of unfinished requests: "abort" ends them, "wait" lets them finish
                first, "keep" freezes them.
            clear_cache: Forget all cached keys and values. Frozen requests are then computed anew.

        Raises:
            RequestError: The mode is unknown.
        """
        ...

    async def resume(self) -> None:
        """Go on after `pause`; harmless otherwise."""
        ...

    async def sleep(self, level: int = 1, mode: SleepMode = "keep") -> None:
        """Give memory back until `wake_up`; requests are queued meanwhile.

        Args:
            level: 0 keeps everything and only runs nothing. 1 drops the KV cache and moves the
                weights to host memory; where they are there already, they stay. 2 drops both, and
                waking reads the checkpoint again, so what `update_weights` brought is lost.
            mode: What becomes of unfinished requests: "keep" freezes them, and computes them anew
                where the cache was dropped; "wait" lets them finish first; "abort" ends them.

        Raises:
            RequestError: Level or mode are unknown, or the worker does not offer the level.
        """
        ...

    async def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Take back what `sleep` gave away; when all is back, go on. Harmless if nothing sleeps.

        Args:
            tags: Some of "weights" and "kv_cache" (levels 1 and 2) or "scheduling" (level 0);
                default: all.

        Raises:
            RequestError: A tag is unknown, or the cache would come before the weights.
            MemoryLimitError: The device has too little memory; the engine sleeps on.
            CheckpointError: Files cannot be read; the engine sleeps on.
        """
        ...

    async def abort_everywhere(self, request_ids: str | Iterable[str] | None = None) -> None:
        """End requests of all clients of the engine with finish reason ABORT; default: all."""
        ...

    async def reset_prefix_cache(self, reset_running: bool = False) -> bool:
        """Forget cached prefixes, as after a change of weights.

        Args:
            reset_running: Compute running requests anew, too.

        Returns:
            False if requests are running and `reset_running` is not set; nothing was done then.
        """
        ...

    async def start_profile(self, folder: str) -> None:
        """Record what the steps that follow compute, which slows them down.

        Args:
            folder: Made if it is missing; the engine writes a trace file there.

        Raises:
            RequestError: The worker cannot do it, a recording is under way, or there is no folder.
        """
        ...

    async def stop_profile(self) -> str:
        """Write the recording; return the name of its file.

        Raises:
            RequestError: There is none.
        """
        ...


class EngineWeights(Protocol):
    """An engine as whoever brings new weights and adapters uses it."""

    async def update_weights(self, weights: Weights) -> None:
        """Replace weights in place between two steps, all that are given or none.

        Cached prefixes are forgotten, and running requests are computed anew with the new weights.
        An engine process that is started anew reads the checkpoint again.

        Args:
            weights: A directory or file of the engine's host, or names and tensors, which pass
                through shared memory. Some or all of the checkpoint's tensors; those that an
                operation holds stacked, such as q, k and v, come together.

        Raises:
            CheckpointError: A name, shape or type is wrong, or others are missing; nothing has
                changed.
            RequestError: The weights sleep, or the worker cannot replace them.
            EngineDeadError: Only part of them could be written.
        """
        ...

    async def load_adapter(self, name: str, path: str) -> None:
        """Load a low-rank adapter, in place of one of this name; requests may name it from then on.

        An engine process that is started anew loads those of `lora_modules` alone.

        Args:
            name: `SamplingParams.adapter` of requests that want it.
            path: A directory of the engine's host, in the form of PEFT.

        Raises:
            RequestError: It is in use, the engine takes no adapters, or has too many.
            CheckpointError: It cannot be read or does not fit the model; nothing has changed.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter.

        Raises:
            RequestError: It is not loaded, or an unfinished request names it.
        """
        ...

    async def adapters(self) -> dict[str, str]:
        """Return the directories of loaded adapters by name."""
        ...


class EngineClient(EngineStatus, EngineControl, EngineWeights, Protocol):
    """An engine as a front end uses it, from one event loop."""

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | PoolingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[RequestUpdate]:
        """Stream what one request gains; the last update is `finished`.

        Leaving the iterator, or cancelling the task, aborts the request. `update.timing` says when
        it arrived, was scheduled, and got its tokens.

        Args:
            prompt: Text or token ids.
            params: Default: `SamplingParams()` with `info.sampling_defaults`. With `PoolingParams`
                the one update has the vector as `pooled`.
            request_id: Unique among this client's unfinished requests; default: a fresh one.
            priority: Lower is served first, with `scheduling_policy` "priority".
            tenant: Only requests of equal tenant share cached prefixes. Comes from the credentials
                of a caller, never from the request itself.
            timeout_s: After so long, every unfinished sequence ends with finish reason ABORT and
                error "deadline".

        Raises:
            RequestError: The request is malformed or could never be served.
            QueueFullError: Too many requests wait; `retry_after_s` estimates when to come back.
            EngineDeadError: The engine has stopped, or does not answer.
        """
        ...

    async def abort(self, request_ids: str | Iterable[str]) -> None:
        """End requests of this client with finish reason ABORT; unknown ids are ignored."""
        ...

    def close(self) -> None:
        """Fail what is running, stop the engine if this client started it. May be called twice."""
        ...
