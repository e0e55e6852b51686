"""`/v1/completions`: one or several prompts, each continued n times."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from starlette.responses import Response

from hotshoe.text.output_processor import RequestUpdate, SequenceUpdate
from hotshoe.types import CompletionOutput, RequestOutput, SamplingParams
from hotshoe_server.call import Call
from hotshoe_server.conversation import text_form
from hotshoe_server.extensions import Endpoint
from hotshoe_server.forms import bounded_grammar
from hotshoe_server.generation import (
    check_answer,
    check_count,
    finish_reason,
    generate,
    truncated,
    usage_of,
)
from hotshoe_server.logprobs import CompletionLogprobsWriter, joined, prompt_logprobs
from hotshoe_server.merge import merge
from hotshoe_server.renderer import Rendered, Renderer
from hotshoe_server.schemas.answers import (
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
    Usage,
)
from hotshoe_server.schemas.completions import CompletionRequest
from hotshoe_server.schemas.fields import StreamOptions
from hotshoe_server.sse import DONE, event, json_text, open_stream

#: Where the text of a chunk is.
_TEXT = b'"text":""'


async def prepare(
    call: Call, body: CompletionRequest
) -> tuple[str, SamplingParams, list[Rendered]]:
    """Return the name to answer under, parameters and prompts."""
    model, served = call.choose(body.model)
    grammar = bounded_grammar(served, text_form(body.response_format, body.structured_outputs))
    defaults = served.client.info.sampling_defaults
    params = body.params(defaults, **({} if grammar is None else {"grammar": grammar}))
    prompts, embeds = body.prompts(), body.embeds()
    check_count(served, (len(prompts) + len(embeds)) * params.n)
    rendered = [await served.renderer.embeds(encoded) for encoded in embeds]
    rendered += [
        truncated(call, await served.renderer.prompt(p, body.add_special_tokens)) for p in prompts
    ]
    return model, params, rendered


async def complete(call: Call, body: CompletionRequest) -> Response | CompletionAnswer:
    """Continue prompts."""
    model, params, rendered = await prepare(call, body)
    check_answer(
        call.served,
        params,
        [len(prompt.token_ids) for prompt in rendered],
        repeated=body.echo + body.return_token_ids,
        stream=bool(body.stream),
    )
    completion = Completion(call, body, params, rendered, model)
    if body.stream:
        return await open_stream(completion.events())
    return await completion.whole()


class Completion:
    """One request on its way.

    Args:
        call: Where it came from.
        body: What it asks for.
        params: The same for the engine.
        prompts: In order.
        model: Its name in the answer.
    """

    def __init__(
        self,
        call: Call,
        body: CompletionRequest,
        params: SamplingParams,
        prompts: Sequence[Rendered],
        model: str,
    ) -> None:
        self._call = call
        self._body = body
        self._params = params
        self._prompts = prompts
        self._answer = CompletionAnswer(
            f"cmpl-{call.id}", int(time.time()), model, call.served.fingerprint, []
        )
        self._prompt_only = body.echo and body.max_tokens == 0
        self._said: dict[int, _Said] = {}

    def _run(self) -> AsyncIterator[tuple[int, RequestUpdate]]:
        """Run all prompts; yield their numbers and updates."""
        name = self._answer.id
        return merge(
            [
                generate(
                    self._call,
                    self._answer.model,
                    prompt,
                    self._params,
                    request_id=name if len(self._prompts) == 1 else f"{name}-{number}",
                    stream=bool(self._body.stream),
                    priority=self._body.priority,
                )
                for number, prompt in enumerate(self._prompts)
            ]
        )

    async def whole(self) -> CompletionAnswer:
        """Run to the end and return the answer."""
        async with aclosing(self._run()) as updates:  # type: ignore[type-var]
            latest = {number: update async for number, update in updates}
        for number, update in sorted(latest.items()):
            output = update.output()
            await self._prepare(number, output)
            write = partial(self._choices, number, output)
            detailed = self._body.logprobs is not None
            self._answer.choices += await self._renderer.run(write) if detailed else write()
        self._answer.usage = self._usage(latest)
        return self._answer

    def _choices(self, number: int, output: RequestOutput) -> list[CompletionChoice]:
        return [self._whole(number, s) for s in output.outputs]

    @property
    def _renderer(self) -> Renderer:
        return self._call.served.renderer

    def _usage(self, latest: Mapping[int, RequestUpdate]) -> Usage:
        """Count tokens; the one that is computed with the prompt alone is not given out."""
        found = usage_of(*latest.values())
        if self._prompt_only:
            found.completion_tokens, found.total_tokens = 0, found.prompt_tokens
        return found

    def _whole(self, number: int, sequence: CompletionOutput) -> CompletionChoice:
        """Return one text, with the prompt before it where that was asked for."""
        text, token_ids, positions = sequence.text, sequence.token_ids, sequence.logprobs
        reason = finish_reason(sequence.finish_reason)
        if self._prompt_only:
            text, token_ids, positions, reason = "", [], positions and [], "length"
        index = number * self._params.n + sequence.index
        choice = CompletionChoice(index, text, None, reason, sequence.stop_reason)
        writer = self._writer()
        self._begin(choice, writer)
        if writer is not None:
            choice.logprobs = joined(choice.logprobs, writer.write(token_ids, positions or []))
        if self._body.return_token_ids:
            choice.token_ids = token_ids
        return choice

    def _writer(self) -> CompletionLogprobsWriter | None:
        if self._body.logprobs is None:
            return None
        as_ids = self._body.return_tokens_as_token_ids
        return CompletionLogprobsWriter(self._call.served.renderer.tokenizer, as_ids)

    async def _prepare(self, number: int, output: RequestOutput) -> None:
        """Make what every choice says of a prompt, once."""
        body = self._body
        if number in self._said:
            return
        if body.echo or body.return_token_ids or body.prompt_logprobs is not None:
            self._said[number] = await self._renderer.run(partial(self._say, number, output))
        else:
            self._said[number] = _Said()

    def _say(self, number: int, output: RequestOutput) -> _Said:
        body, said = self._body, _Said()
        if body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            known = self._call.served.client.tokenizer
            said.prompt_logprobs = prompt_logprobs(known, output.prompt_logprobs)
        if body.return_token_ids:
            said.token_ids = output.prompt_token_ids
        if not body.echo:
            return said
        prompt = self._prompts[number]
        said.text = prompt.text or self._renderer.tokenizer.decode(prompt.token_ids, False)
        writer = self._writer()
        if writer is not None and output.prompt_logprobs is not None:
            said.logprobs = writer.write(output.prompt_token_ids, output.prompt_logprobs)
            said.offset = writer.offset
        return said

    def _begin(self, choice: CompletionChoice, writer: CompletionLogprobsWriter | None) -> None:
        """Say what was asked of the prompt, and put it before a choice's text."""
        said = self._said[choice.index // self._params.n]
        choice.prompt_logprobs, choice.prompt_token_ids = said.prompt_logprobs, said.token_ids
        choice.text, choice.logprobs = said.text + choice.text, said.logprobs
        if writer is not None:
            writer.offset = said.offset

    async def events(self) -> AsyncIterator[bytes]:
        """Yield events until every prompt's request has ended."""
        options = self._body.stream_options or StreamOptions()
        if options.include_usage:
            self._answer.usage = None
        choices = [
            _Stream(self._writer(), self._frame(index))
            for index in range(len(self._prompts) * self._params.n)
        ]
        latest: dict[int, RequestUpdate] = {}
        async with aclosing(self._run()) as updates:  # type: ignore[type-var]
            async for number, update in updates:
                first = number * self._params.n
                latest[number] = update
                if number not in self._said:
                    await self._prepare(number, update.output())
                if options.continuous_usage_stats:
                    self._answer.usage = self._usage(latest)
                found = [
                    self._advance(choices[first + sequence.index], first, sequence)
                    for sequence in update.sequences
                ]
                if chunk := found[0] if len(found) == 1 else b"".join(found):
                    yield chunk
        if options.include_usage:
            self._answer.choices, self._answer.usage = [], self._usage(latest)
            yield event(self._answer)
        yield DONE

    def _advance(self, stream: _Stream, first: int, sequence: SequenceUpdate) -> bytes:
        """Return the chunk of what one sequence gained."""
        if stream.finished:
            return b""
        stream.finished = sequence.finish_reason is not None
        if (
            stream.frame is not None
            and not stream.finished
            and (stream.started or not self._body.echo)
        ):
            text, (head, tail) = sequence.new_text, stream.frame
            return head + json_text(text) + tail if text else b""
        choice = CompletionChoice(first + sequence.index, sequence.new_text, None, None)
        token_ids, positions = sequence.new_token_ids, sequence.new_logprobs or []
        if self._prompt_only:
            choice.text, token_ids, positions = "", [], []
        if not stream.started:
            self._begin(choice, stream.writer)
            stream.started = True
        if stream.writer is not None:
            choice.logprobs = joined(choice.logprobs, stream.writer.write(token_ids, positions))
        if self._body.return_token_ids:
            choice.token_ids = token_ids
        if stream.finished:
            choice.finish_reason = finish_reason(sequence.finish_reason)
            choice.stop_reason = sequence.stop_reason
        return self._write(choice)

    def _write(self, choice: CompletionChoice) -> bytes:
        self._answer.choices = [choice]
        return event(self._answer)

    def _frame(self, index: int) -> tuple[bytes, bytes] | None:
        """Return the bytes around the text in a chunk of text; None where chunks have more."""
        options, body = self._body.stream_options, self._body
        counted = options is not None and options.continuous_usage_stats
        positions = body.logprobs is not None or body.prompt_logprobs is not None
        if counted or positions or body.return_token_ids:
            return None
        head, mark, tail = self._write(CompletionChoice(index, "", None, None)).partition(_TEXT)
        assert mark, "CompletionChoice is written differently"
        return head + mark[:-2], tail


@dataclass(slots=True)
class _Said:
    """What all choices of one prompt say of it; `offset` is the length of what has `logprobs`."""

    text: str = ""
    logprobs: CompletionLogprobs | None = None
    offset: int = 0
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None


@dataclass(slots=True)
class _Stream:
    """One choice of a stream on its way."""

    writer: CompletionLogprobsWriter | None
    frame: tuple[bytes, bytes] | None
    started: bool = False
    finished: bool = False


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/completions",
        complete,
        "Continue prompts",
        generates=True,
        answer=CompletionAnswer,
        other_types=("text/event-stream",),
    )
]
