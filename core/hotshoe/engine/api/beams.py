"""Beam search over an engine that reports log probabilities: each step asks for one token a beam.

The engine's prefix cache keeps what the beams have computed, so that a step computes the tokens of
one block at most for each. Nothing but log probabilities comes back, so any engine will do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hotshoe.engine.api.inputs import check_length
from hotshoe.errors import EngineError, RequestError
from hotshoe.text.output_processor import OutputProcessor, RequestUpdate
from hotshoe.types import (
    BeamSearchParams,
    CompletionOutput,
    FinishReason,
    RequestOutput,
    SamplingParams,
    TokenLogprobs,
    TokenOutput,
    TokensPrompt,
)

if TYPE_CHECKING:
    from hotshoe.engine.client import EngineClient, EngineInfo
    from hotshoe.text.tokenizer import Tokenizer

_CUT_OFF = (FinishReason.ABORT, FinishReason.ERROR)


@dataclass(frozen=True, slots=True)
class _Beam:
    """A text, its tokens' log probabilities, and their sum."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    total: float = 0.0
    ended: bool = False


class BeamSearch:
    """The beams of one prompt.

    Every continuation that ends a text is kept by its score; of the others the `beam_width`
    likeliest go on. The search ends when no text can come to a better score than those that are
    kept.

    Args:
        prompt: Its tokens.
        params: How to search.
        info: Of the engine.

    Raises:
        RequestError: The engine reports too few log probabilities for so many beams, or the prompt
            leaves no room.
    """

    def __init__(self, prompt: TokensPrompt, params: BeamSearchParams, info: EngineInfo) -> None:
        self._prompt, self._params = prompt, params
        limit = info.config.max_logprobs
        if 2 * params.beam_width > limit:
            raise RequestError(
                f"a search with {params.beam_width} beams needs {2 * params.beam_width} log "
                f"probabilities, but this engine allows {limit} (--max-logprobs)",
                "beam_width",
            )
        check_length(len(prompt.token_ids), info.max_model_len)
        room = info.max_model_len - len(prompt.token_ids)
        self._length = min(params.max_tokens or room, room)
        self._ends = frozenset(() if params.ignore_eos else info.eos_token_ids)
        self._live = [_Beam()]
        self._ended: list[_Beam] = []
        self.num_cached_tokens = 0

    @property
    def finished(self) -> bool:
        """True when no step is left."""
        return not self._live

    @property
    def prompts(self) -> list[TokensPrompt]:
        """What the next step asks the engine to go on with, a beam each."""
        ids = list(self._prompt.token_ids)
        return [replace(self._prompt, token_ids=[*ids, *b.token_ids]) for b in self._live]

    @property
    def step_params(self) -> SamplingParams:
        """What it asks for."""
        return SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprobs=2 * self._params.beam_width,
            ignore_eos=True,
            detokenize=False,
            adapter=self._params.adapter,
        )

    def advance(self, outputs: Sequence[CompletionOutput]) -> None:
        """Take what came of each of `prompts`.

        Raises:
            EngineError: One of them failed.
        """
        grown: list[_Beam] = []
        for beam, output in zip(self._live, outputs, strict=True):
            if not output.logprobs:
                raise EngineError(output.error or "a step of the search was cut off")
            grown += self._grown(beam, output.logprobs[0])
        self._ended += [beam for beam in grown if beam.ended]
        width = self._params.beam_width
        going = sorted((b for b in grown if not b.ended), key=lambda b: -b.total)[:width]
        if not going or len(going[0].token_ids) == self._length:
            self._ended += going
            going = []
        self._ended = sorted(self._ended, key=self._score, reverse=True)[:width]
        if len(self._ended) == width:
            worst = self._score(self._ended[-1])
            going = [beam for beam in going if self._hope(beam) > worst]
        self._live = going

    def _grown(self, beam: _Beam, found: TokenLogprobs) -> Iterable[_Beam]:
        for rank, (token_id, value) in enumerate(
            zip(found.token_ids[1:], found.logprobs[1:], strict=True), 1
        ):
            yield _Beam(
                (*beam.token_ids, token_id),
                (*beam.logprobs, TokenLogprobs((token_id,), (value,), rank)),
                beam.total + value,
                token_id in self._ends,
            )

    def _score(self, beam: _Beam) -> float:
        return float(beam.total / len(beam.token_ids) ** self._params.length_penalty)

    def _hope(self, beam: _Beam) -> float:
        """Return the best score that a beam can come to: sums of log probabilities only fall."""
        penalty = self._params.length_penalty
        length = self._length if penalty > 0 else len(beam.token_ids) + 1
        return float(beam.total / length**penalty)

    def update(
        self, request_id: str, text: str | None, tokenizer: Tokenizer | None
    ) -> RequestUpdate:
        """Return the texts that were found, the best one first, as one request's."""
        found = self._ended
        params = SamplingParams(
            n=len(found), max_tokens=None, logprobs=0, detokenize=tokenizer is not None
        )
        names = [f"{request_id}#{index}" for index in range(len(found))]
        processor = OutputProcessor(tokenizer)
        ids = list(self._prompt.token_ids)
        processor.add(request_id, text, ids, params, names)
        outputs = [
            TokenOutput(
                name,
                list(beam.token_ids),
                list(beam.logprobs),
                finish_reason=FinishReason.STOP if beam.ended else FinishReason.LENGTH,
                num_cached_tokens=self.num_cached_tokens,
            )
            for name, beam in zip(names, found, strict=True)
        ]
        [update], _ = processor.process(outputs)
        return update


def run_searches(
    searches: Sequence[BeamSearch],
    generate: Callable[[list[TokensPrompt], list[SamplingParams]], list[RequestOutput]],
) -> None:
    """Run searches to their ends, all of them in the same steps.

    Raises:
        EngineError: A step failed.
    """
    while live := [search for search in searches if not search.finished]:
        prompts = [search.prompts for search in live]
        params = [s.step_params for s, own in zip(live, prompts, strict=True) for _ in own]
        outputs = iter(generate([prompt for own in prompts for prompt in own], params))
        for search, own in zip(live, prompts, strict=True):
            search.advance([next(outputs).outputs[0] for _ in own])


async def search_beams(
    client: EngineClient,
    prompt: TokensPrompt,
    params: BeamSearchParams,
    request_id: str,
    priority: int = 0,
    tenant: str | None = None,
    timeout_s: float | None = None,
) -> AsyncIterator[RequestUpdate]:
    """Search, and yield the one update with what was found; arguments as `EngineClient.generate`.

    Where a step fails or is cut off, the update is that step's, of one sequence.

    Raises:
        RequestError: See `BeamSearch` and `EngineClient.generate`, as other errors.
    """
    search = BeamSearch(prompt, params, client.info)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    steps = 0

    async def one(prompt: TokensPrompt, name: str) -> RequestUpdate:
        # At once where the time is over: a step may be quicker than any least time.
        left = None if until is None else max(until - time.monotonic(), 1e-6)
        updates = client.generate(prompt, search.step_params, name, priority, tenant, left)
        async with aclosing(updates):  # type: ignore[type-var]
            return [update async for update in updates][-1]

    while not search.finished:
        steps += 1
        tasks = [
            asyncio.create_task(one(prompt, f"{request_id}~{steps}.{number}"))
            for number, prompt in enumerate(search.prompts)
        ]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        cut = next((u for u in found if u.sequences[0].finish_reason in _CUT_OFF), None)
        if cut is not None:
            yield cut
            return
        if steps == 1:
            search.num_cached_tokens = found[0].num_cached_tokens
        search.advance([update.output().outputs[0] for update in found])
    yield search.update(request_id, None, client.tokenizer)
