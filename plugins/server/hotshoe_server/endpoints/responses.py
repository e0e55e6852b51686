"""`/v1/responses`: answers made of items, stored so that a conversation can go on from them."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from hotshoe.text.output_processor import RequestUpdate, SequenceUpdate
from hotshoe.types import FinishReason
from hotshoe_server.background import begin, follow, stop, stored
from hotshoe_server.call import Call
from hotshoe_server.conversation import Dialogue, open_dialogue, text_form
from hotshoe_server.conversations import add, given, messages_of
from hotshoe_server.errors import ApiError, as_api_error
from hotshoe_server.extensions import Endpoint
from hotshoe_server.generation import check_answer, check_length, check_wishes, generate
from hotshoe_server.logprobs import chat_logprobs
from hotshoe_server.response_builder import ResponseBuilder, Told, as_message
from hotshoe_server.schemas.answers import TokenLogprob
from hotshoe_server.schemas.chat import check_variables
from hotshoe_server.schemas.response_answers import (
    DeletedResponse,
    InputDetails,
    OutputDetails,
    ResponseAnswer,
    ResponseUsage,
)
from hotshoe_server.schemas.responses import ResponsesRequest
from hotshoe_server.sse import event, open_stream
from hotshoe_server.store import StoredResponse
from hotshoe_server.thinking import limit_thinking
from hotshoe_server.tools import plan_tools

_log = logging.getLogger(__name__)


async def respond(call: Call, body: ResponsesRequest) -> Response | ResponseAnswer:
    """Answer with items."""
    model, served = call.choose(body.model)
    make_params = partial(body.sampling_params, served.client.info.sampling_defaults)
    make_params()  # mistakes are found before the prompt is rendered
    opening, history = await conversation_of(call, body)
    form = None if body.text is None else body.text.format
    dialogue = await open_dialogue(
        served,
        [*opening, *history],
        check_variables(body.variables()),
        plan_tools(served, body.chat_tools(), body.chat_choice(), body.parallel_tool_calls),
        make_params,
        text_form(form, body.structured_outputs),
    )
    dialogue = limit_thinking(served, dialogue, body.thinking_token_budget)
    lengths = [len(dialogue.rendered.token_ids)]
    check_answer(served, dialogue.params, lengths, fields=("max_output_tokens", "top_logprobs"))
    answer = ResponseAnswer(
        f"resp_{secrets.token_hex(12)}",
        int(time.time()),
        "queued" if body.background else "in_progress",
        model,
        [],
        **_echo(body, dialogue),
    )
    exchange = Exchange(call, body, dialogue, history, answer)
    updates = generate(
        call,
        model,
        dialogue.rendered,
        dialogue.params,
        request_id=answer.id,
        stream=bool(body.stream),
        priority=body.priority,
    )
    if body.background:
        check_length(call, dialogue.rendered.token_ids)
        check_wishes(call, lengths[0], body.priority)
        await begin(call, exchange, exchange.parts(updates))
        return await open_stream(follow(call, answer.id, 0)) if body.stream else answer
    if body.stream:
        return await open_stream(exchange.events(updates))
    return await exchange.whole(updates)


class Exchange:
    """One request on its way.

    Args:
        call: Where it came from.
        body: What it asks for.
        dialogue: What is run.
        history: The conversation without instructions, in chat's form.
        answer: Filled in as it comes.
    """

    def __init__(
        self,
        call: Call,
        body: ResponsesRequest,
        dialogue: Dialogue,
        history: list[dict[str, Any]],
        answer: ResponseAnswer,
    ) -> None:
        self._call = call
        self._body = body
        self._history = history
        self._answer = answer
        self._reader = dialogue.reader()
        self._builder = ResponseBuilder()
        self._num_told = 0

    @property
    def answer(self) -> ResponseAnswer:
        """The answer as far as it has come."""
        return self._answer

    async def whole(self, updates: AsyncIterator[RequestUpdate]) -> ResponseAnswer:
        """Run to the end and return the answer."""
        async with aclosing(updates):  # type: ignore[type-var]
            async for update in updates:
                await self._advance(update)
        return self._answer

    async def events(self, updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[bytes]:
        """Yield events until the request has ended; its failure is one of them."""
        async with aclosing(self.parts(updates)) as parts:  # type: ignore[type-var]
            async for part in parts:
                yield b"".join(part)

    async def parts(self, updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[list[bytes]]:
        """Yield the events of each update; in the background a failure at once is one, too."""
        started = bool(self._body.background)
        if started:
            yield self._written(self._telling("created", "queued"))
        async with aclosing(updates):  # type: ignore[type-var]
            try:
                async for update in updates:
                    told: list[Told] = []
                    if not started or self._answer.status == "queued":
                        self._answer.status = "in_progress"
                        told = self._telling(*([] if started else ["created"]), "in_progress")
                        started = True
                    told += await self._advance(update)
                    if told:
                        yield self._written(told)
            except Exception as error:
                if not started:
                    raise
                found = as_api_error(error)
                if found.code == "internal_error":
                    _log.error("a response failed", exc_info=error)
                yield self._written(self._fail(found))

    def _telling(self, *names: str) -> list[Told]:
        return [(f"response.{name}", self._whole()) for name in names]

    async def _advance(self, update: RequestUpdate) -> list[Told]:
        """Take in an update and return what to tell of it; the answer is stored before that."""
        sequence = update.sequences[0]
        told = self._builder.build(self._reader.read(sequence), self._logprobs(sequence))
        if update.finished:
            told += self._end(update)
            await self._remember()
            if self._answer.store and not self._body.background:
                await self._call.server.store.put(self._answer.id, self.entry())
        return told

    def _logprobs(self, sequence: SequenceUpdate) -> list[TokenLogprob]:
        """Return the log probabilities of the text that a sequence gained, where they are wanted.

        The token that ends it is no text. It comes with the last of the text, or behind it.
        """
        if not sequence.new_logprobs:
            return []
        tokenizer, body = self._call.served.renderer.tokenizer, self._body
        ids, found = sequence.new_token_ids, sequence.new_logprobs
        if ids[-1] == sequence.stop_reason or ids[-1] in tokenizer.special_token_ids:
            ids, found = ids[:-1], found[:-1]
        return chat_logprobs(tokenizer, ids, found, body.return_tokens_as_token_ids).content

    def _end(self, update: RequestUpdate) -> list[Told]:
        """Close everything and return what to tell."""
        sequence, told = update.sequences[0], list[Told]()
        cut = sequence.finish_reason is not FinishReason.STOP
        self._builder.close(told, "incomplete" if cut else "completed")
        answer = self._answer
        answer.output = self._builder.items
        name = answer.status = "incomplete" if cut else "completed"
        if self._body.background and sequence.finish_reason is FinishReason.ABORT:
            answer.status = "cancelled"  # which no event is named after
        elif cut:
            reason = (
                "max_output_tokens" if sequence.finish_reason is FinishReason.LENGTH else "abort"
            )
            answer.incomplete_details = {"reason": reason}
        else:
            answer.completed_at = int(time.time())
        prompt, generated = update.num_prompt_tokens, update.num_generated_tokens
        answer.usage = ResponseUsage(
            prompt,
            InputDetails(update.num_cached_tokens),
            generated,
            OutputDetails(self._reader.num_reasoning_tokens),
            prompt + generated,
        )
        return [*told, *self._telling(name)]

    async def _remember(self) -> None:
        """Add what was said and answered to the conversation, if there is one."""
        named = self._body.conversation_id
        if named is None or self._answer.status == "cancelled":
            return
        answered = msgspec.to_builtins(self._answer.output)
        await add(self._call, named, [*given(self._body.input_items()), *answered], "conversation")

    def _fail(self, error: ApiError) -> list[Told]:
        self._answer.status = "failed"
        self._answer.error = {"code": "server_error", "message": str(error)}
        self._answer.output = self._builder.items
        return self._telling("failed")

    def entry(self) -> StoredResponse:
        """Return what is stored of the answer as far as it has come."""
        messages = [*self._history, as_message(self._answer.output)]
        return StoredResponse(
            self._call.tenant,
            msgspec.json.encode(self._answer),
            msgspec.json.encode(messages),
            running=self._answer.status in ("queued", "in_progress"),
            followed=bool(self._body.background and self._body.stream),
        )

    def _whole(self) -> dict[str, Any]:
        return {"response": msgspec.Raw(msgspec.json.encode(self._answer))}

    def _written(self, told: list[Told]) -> list[bytes]:
        written = []
        for name, data in told:
            numbered = {"type": name, "sequence_number": self._num_told, **data}
            written.append(event(numbered, name))
            self._num_told += 1
        return written


async def conversation_of(
    call: Call, body: ResponsesRequest
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the instructions and the conversation that a request goes on with, in chat's form.

    Raises:
        ApiError: An earlier response is not stored, or is another tenant's.
    """
    if (named := body.conversation_id) is not None:
        before = await messages_of(call, named, "conversation")
    else:
        before = await _earlier(call, body.previous_response_id)
    history = [*before, *body.chat_messages()]
    given = body.instructions
    return ([] if given is None else [{"role": "system", "content": given}]), history


async def _earlier(call: Call, response_id: str | None) -> list[dict[str, Any]]:
    """Return the conversation up to a stored response.

    Raises:
        ApiError: It is not stored, or is another tenant's.
    """
    if response_id is None:
        return []
    found = await stored(call, response_id, "previous_response_id")
    if found.running:
        message = f"response {response_id!r} is still being made; wait for its end"
        raise ApiError("invalid_value", message, "previous_response_id")
    messages: list[dict[str, Any]] = msgspec.json.decode(found.messages)
    return messages


def _echo(body: ResponsesRequest, dialogue: Dialogue) -> dict[str, Any]:
    """Return what a response repeats of its request, and what stood for what that left open."""
    values = body.model_dump(
        exclude_none=True,
        by_alias=True,
        include={
            *("tools", "tool_choice", "instructions", "max_output_tokens", "metadata"),
            *("previous_response_id", "reasoning", "store", "temperature", "text", "top_p"),
            *("user", "parallel_tool_calls", "top_logprobs", "background"),
        },
    )
    defaults = {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "metadata": {},
        "temperature": dialogue.params.temperature,
        "top_p": dialogue.params.top_p,
        "text": {"format": {"type": "text"}},
    }
    if body.conversation_id is not None:
        values["conversation"] = {"id": body.conversation_id}
    return defaults | values


async def stored_response(call: Call) -> Response:
    """Return a stored response, or the events of its stream from a number on.

    Raises:
        ApiError: It is not stored, keeps no events, or a parameter is bad; the parameter is named.
    """
    response_id, query = call.path_params["response_id"], call.query_params
    wants = query.get("stream", "false").lower() not in ("false", "0")
    after = query.get("starting_after")
    if after is not None and not wants:
        raise ApiError("invalid_value", "starting_after needs stream=true", "starting_after")
    if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 10):
        message = f"starting_after is the number of an event, not {after!r}"
        raise ApiError("invalid_value", message, "starting_after")
    entry = await stored(call, response_id)
    if not wants:
        return Response(entry.answer, media_type="application/json")
    if not entry.followed:
        message = "this response keeps no events; ask for background=true and stream=true first"
        raise ApiError("unsupported_parameter", message, "stream")
    return await open_stream(follow(call, response_id, 0 if after is None else int(after) + 1))


async def cancel_response(call: Call) -> Response:
    """End a response that is made in the background; one that has ended stays as it is.

    Raises:
        ApiError: It is not stored, or is not made in the background.
    """
    response_id = call.path_params["response_id"]
    if not msgspec.json.decode((await stored(call, response_id)).answer)["background"]:
        raise ApiError("invalid_value", "only responses with background=true can be cancelled")
    return Response((await stop(call, response_id)).answer, media_type="application/json")


async def delete_response(call: Call) -> DeletedResponse:
    """Forget a stored response, and end it if it is still being made."""
    response_id = call.path_params["response_id"]
    await stop(call, response_id)
    await call.server.store.delete(response_id, call.tenant)
    return DeletedResponse(response_id)


_ONE = "/v1/responses/{response_id}"
ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/responses",
        respond,
        "Answer with items",
        generates=True,
        answer=ResponseAnswer,
        other_types=("text/event-stream",),
    ),
    Endpoint(
        "GET",
        _ONE,
        stored_response,
        "A stored response",
        answer=ResponseAnswer,
        other_types=("text/event-stream",),
    ),
    Endpoint("POST", f"{_ONE}/cancel", cancel_response, "End a response", answer=ResponseAnswer),
    Endpoint("DELETE", _ONE, delete_response, "Forget a response", answer=DeletedResponse),
]
