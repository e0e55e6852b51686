"""The offline API: `LLM("demo").generate(...)`."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, cast

from hotshoe.config import EngineConfig, ResolvedConfig
from hotshoe.engine.api.engine import Engine
from hotshoe.engine.api.pooled import PoolingVerbs
from hotshoe.engine.client import EngineStats, PauseMode, SleepMode
from hotshoe.errors import ConfigError, RequestError
from hotshoe.platform import Change
from hotshoe.plugins import PluginManager
from hotshoe.slots import Decision
from hotshoe.text.output_processor import RequestUpdate
from hotshoe.types import (
    BeamSearchParams,
    EmbedsPrompt,
    PoolingParams,
    Prompt,
    RequestOutput,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hotshoe.loader.sources import Weights

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class LLM(PoolingVerbs):
    """A loaded model in this process.

    Args:
        model: A model directory or name; or leave it out and give `config`.
        config: A whole configuration; excludes `model` and options.
        plugins: Default: those installed.
        options: Fields of `EngineConfig`.

    Raises:
        UserError: The engine cannot be built as asked.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        plugins: PluginManager | None = None,
        **options: Any,
    ) -> None:
        if config is None:
            named = options if model is None else {"model": model, **options}
            config = EngineConfig.from_mapping(named)
        elif model is not None or options:
            raise ConfigError("give either config, or model and options")
        self.engine = Engine(config, plugins)
        self._count = 0
        # Requests whose output nobody has taken yet; None until they have ended.
        self._enqueued: dict[str, RequestOutput | None] = {}
        # Updates of open streams that other calls have stepped past.
        self._unread: dict[str, deque[RequestUpdate]] = {}

    @property
    def config(self) -> ResolvedConfig:
        """The resolved configuration."""
        return self.engine.setup.config

    @property
    def changes(self) -> Sequence[Change]:
        """Options that the user left open: each value and its reason."""
        return self.engine.setup.changes

    @property
    def decisions(self) -> Sequence[Decision]:
        """The implementation that serves each slot, and the verdicts of all others."""
        return self.engine.core.info.decisions

    @property
    def startup(self) -> Mapping[str, float]:
        """Start-up phases and their seconds."""
        return self.engine.startup

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes of memory by purpose, such as "weights" and "kv_cache"."""
        return self.engine.core.workers.memory

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """Fields of `SamplingParams` as the model's authors chose them; for where none are given.

        To change one of them: `SamplingParams(**{**llm.sampling_defaults, "temperature": 0.2})`.
        """
        return self.engine.info.sampling_defaults

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, None with `skip_tokenizer_init`."""
        return self.engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, batched. The order of results is that of the prompts.

        Raises:
            RequestError: A prompt or parameter is bad; then none of the prompts is run.
        """
        ids = self.enqueue(prompts, params)
        try:
            return self._wait(ids)
        finally:
            self._drop(ids)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[RequestOutput]:
        """Find the likeliest continuations of prompts; the order is that of the prompts.

        The `beam_width` outputs of each prompt come best first, with `cumulative_logprob`.

        Raises:
            RequestError: A prompt or parameter is bad; then none of the prompts is run.
        """
        from hotshoe.engine.api.beams import BeamSearch, run_searches  # for those who search

        if not isinstance(params, BeamSearchParams):
            raise RequestError(f"params must be BeamSearchParams, not {params!r}", "params")
        one, engine = SamplingParams(max_tokens=1), self.engine
        prepared = [engine.inputs.prepare("", p, one) for p in _batch(prompts)]
        if any(p.add.embeds is not None for p in prepared):
            raise RequestError("a beam search takes text or token ids", "prompt")
        searches = [
            BeamSearch(TokensPrompt(p.prompt_token_ids, p.add.cache_salt), params, engine.info)
            for p in prepared
        ]
        run_searches(searches, self.generate)
        return [
            search.update(self._next_id(), p.prompt, engine.tokenizer).output()
            for search, p in zip(searches, prepared, strict=True)
        ]

    def _pool(
        self, prompts: Prompt | Sequence[Prompt], params: PoolingParams
    ) -> list[RequestOutput]:
        """See `PoolingVerbs`."""
        ids: list[str] = []
        try:
            for prompt in _batch(prompts):
                ids.append(self._next_id())
                self.engine.add(ids[-1], prompt, params)
            self._enqueued.update(dict.fromkeys(ids))
            return self._wait(ids)
        finally:
            self._drop(ids)

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: int = 0,
    ) -> list[str]:
        """Queue prompts without running them; `wait_for_completion` does.

        Args:
            prompts: One or several.
            params: For all of them, or one for each.
            priority: Lower is served first, with `scheduling_policy` "priority".

        Returns:
            Their request ids, in order.

        Raises:
            RequestError: A prompt or parameter is bad; then none of the prompts is queued.
            QueueFullError: More would wait than the configuration allows; none is queued.
        """
        batch = _batch(prompts)
        each = _params_for(batch, self._params(params))
        ids = [self._next_id() for _ in batch]
        try:
            for request_id, prompt, one in zip(ids, batch, each, strict=True):
                self.engine.add(request_id, prompt, one, priority)
        except Exception:
            self._drop(ids)
            raise
        self._enqueued.update(dict.fromkeys(ids))
        return ids

    def wait_for_completion(self) -> list[RequestOutput]:
        """Run until everything that was enqueued has ended, and return it in order."""
        ids = list(self._enqueued)
        return self._wait(ids)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Iterator[RequestUpdate]:
        """Complete one prompt, yielding what every step brought; `update.output()` is the whole.

        The request begins with the first `next`; leaving the iterator early aborts it. Other calls
        may be made meanwhile.
        """
        request_id = self._next_id()
        self.engine.add(request_id, prompt, self._params(params))
        updates = self._unread[request_id] = deque()
        finished = False
        try:
            while not finished:
                while not updates:
                    self._check_awake()
                    with _interrupts_postponed():
                        self._step()
                update = updates.popleft()
                finished = update.finished
                yield update
        finally:
            del self._unread[request_id]
            self.engine.abort(request_id)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        tools: Tools | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one or several conversations, rendered by the model's chat template.

        Args:
            messages: In OpenAI's form; or a list of such conversations, which run as one batch.
            params: For all of them, or one for each; default: the model's.
            tools: Function schemas offered to the model.
            options: `add_generation_prompt`, `continue_final_message`, and variables of the
                template, such as `enable_thinking`.

        Raises:
            RequestError: The template refuses the messages, or a parameter is bad.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping)
        batch = cast("Sequence[Messages]", messages if several else [messages])
        render = self.engine.inputs.render_chat
        return self.generate([render(one, tools, **options) for one in batch], params)

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        tools: Tools | None = None,
        **options: Any,
    ) -> Iterator[RequestUpdate]:
        """Answer a conversation, streaming; options as for `chat`."""
        return self.stream(self.engine.inputs.render_chat(messages, tools, **options), params)

    def stats(self) -> EngineStats:
        """Return counts of requests, tokens and blocks up to now."""
        return self.engine.core.stats()

    @property
    def is_paused(self) -> bool:
        """True between `pause` and `resume`."""
        return self.engine.core.is_paused

    @property
    def is_sleeping(self) -> bool:
        """True between `sleep` and a full `wake_up`."""
        return self.engine.core.is_sleeping

    def pause(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Run nothing until `resume`; see `EngineClient.pause`.

        Raises:
            RequestError: The mode is unknown.
        """
        self._keep(self.engine.pause(mode))
        while self.engine.has_work():
            with _interrupts_postponed():
                self._step()
        if clear_cache:
            self.engine.core.reset_prefix_cache(reset_running=True)

    def resume(self) -> None:
        """Go on after `pause`; harmless otherwise."""
        self.engine.core.resume()

    def sleep(self, level: int = 1, mode: SleepMode = "keep") -> None:
        """Give memory back until `wake_up`; see `EngineClient.sleep`.

        Raises:
            RequestError: Level or mode are unknown, or the level is not offered.
        """
        self.engine.core.workers.check_sleep(level, mode)
        pauses = mode != "keep" and not self.is_paused
        if pauses:
            self.pause("wait" if mode == "wait" else "abort", clear_cache=False)
        try:
            self._keep(self.engine.quiesce())
            self._keep(self.engine.sleep(level))
        finally:
            if pauses:
                self.resume()  # sleep holds requests back from now on

    def update_weights(self, weights: Weights) -> None:
        """Replace weights in place; see `EngineClient.update_weights`.

        Raises:
            CheckpointError: They do not fit; nothing has changed.
            RequestError: The weights sleep, or the worker cannot replace them.
        """
        self._keep(self.engine.quiesce())
        self.engine.core.update_weights(weights)

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a low-rank adapter; see `EngineClient.load_adapter`.

        Raises:
            RequestError: It is in use, the engine takes no adapters, or has too many.
            CheckpointError: It cannot be read or does not fit the model; nothing has changed.
        """
        self.engine.core.load_adapter(name, str(path))

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter.

        Raises:
            RequestError: It is not loaded, or an unfinished request names it.
        """
        self.engine.core.unload_adapter(name)

    def adapters(self) -> dict[str, str]:
        """Return the directories of loaded adapters by name."""
        return self.engine.core.workers.adapters.paths()

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Take back what `sleep` gave away; see `EngineClient.wake_up`.

        Raises:
            RequestError: A tag is unknown, or the cache would come before the weights.
            MemoryLimitError, CheckpointError: As there.
        """
        self.engine.core.wake_up(tags)

    def reset_prefix_cache(self, reset_running: bool = False) -> bool:
        """Forget cached prefixes; see `EngineClient.reset_prefix_cache`."""
        return self.engine.core.reset_prefix_cache(reset_running)

    def start_profile(self, folder: str) -> None:
        """Record the steps that follow; see `EngineClient.start_profile`.

        Raises:
            RequestError: The worker cannot do it, or a recording is under way.
        """
        self.engine.core.workers.start_profile(folder)

    def stop_profile(self) -> str:
        """Write the recording; return the name of its file.

        Raises:
            RequestError: There is none.
        """
        return self.engine.core.workers.stop_profile()

    def close(self) -> None:
        """Release the device and its memory."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _step(self) -> list[RequestUpdate]:
        """Run one step and keep what somebody will wait for."""
        return self._keep(self.engine.step())

    def _keep(self, updates: list[RequestUpdate]) -> list[RequestUpdate]:
        """Keep updates that somebody will wait for."""
        for update in updates:
            if update.request_id in self._unread:
                self._unread[update.request_id].append(update)
            elif update.finished and update.request_id in self._enqueued:
                self._enqueued[update.request_id] = update.output()
        return updates

    def _wait(self, ids: Sequence[str]) -> list[RequestOutput]:
        """Step until these have ended; hand their outputs over."""
        missing = {i for i in ids if self._enqueued[i] is None}
        with _interrupts_postponed() as heed_interrupts:
            while missing:
                self._check_awake()
                missing.difference_update(u.request_id for u in self._step() if u.finished)
                heed_interrupts()
        found = (self._enqueued.pop(i) for i in ids)
        return [output for output in found if output is not None]

    def _check_awake(self) -> None:
        """Refuse to wait for what cannot come.

        Raises:
            RequestError: The engine is paused or asleep, and nothing that is waited for runs.
        """
        if (self.is_paused or self.is_sleeping) and not self.engine.has_work():
            state, remedy = ("asleep", "wake_up") if self.is_sleeping else ("paused", "resume")
            raise RequestError(f"the engine is {state}; call {remedy}() first")

    def _drop(self, ids: Sequence[str]) -> None:
        """Abort those that have not ended, and forget all."""
        for request_id in ids:
            self.engine.abort(request_id)
            self._enqueued.pop(request_id, None)

    def _params(self, params: Any) -> Any:
        """Return what was given, or else what the model's authors chose."""
        return SamplingParams(**self.sampling_defaults) if params is None else params

    def _next_id(self) -> str:
        self._count += 1
        return f"req-{self._count}"


def _batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return prompts as a list."""
    if isinstance(prompts, (str, TextPrompt, TokensPrompt, EmbedsPrompt)):
        return [prompts]
    if isinstance(prompts, Mapping) or not isinstance(prompts, Iterable):
        raise RequestError(
            f"prompts are text, TextPrompt, TokensPrompt, EmbedsPrompt or a list of these, not "
            f"{prompts!r}",
            "prompt",
        )
    return list(prompts)


def _params_for(
    batch: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]
) -> list[SamplingParams]:
    """Return one set of parameters for each prompt."""
    if not isinstance(params, (list, tuple)):
        return [params] * len(batch)  # type: ignore[list-item]  # `Engine.add` checks the type
    if len(params) != len(batch):
        raise RequestError(f"{len(batch)} prompts, but {len(params)} sampling parameters", "params")
    return list(params)


@contextmanager
def _interrupts_postponed() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C, which would tear a step apart, wait until the end or until what this yields is
    called; a second one does not wait."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: None
        return
    waiting: list[tuple[Any, ...]] = []

    def postpone(*signaled: Any) -> None:
        if waiting:
            handler(*signaled)
        else:
            waiting.append(signaled)

    def heed() -> None:
        if waiting:
            handler(*waiting.pop())

    signal.signal(signal.SIGINT, postpone)
    try:
        yield heed
    finally:
        signal.signal(signal.SIGINT, handler)
        heed()
