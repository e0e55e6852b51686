"""`/v1/responses`: answers made of items, stored so that a conversation can go on from them."""

from __future__ import annotations

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
from hotshoe_server.call import Call
from hotshoe_server.conversation import Dialogue, open_dialogue, text_form
from hotshoe_server.errors import ApiError, as_api_error
from hotshoe_server.extensions import Endpoint
from hotshoe_server.generation import check_answer, generate
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
        "in_progress",
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

    async def whole(self, updates: AsyncIterator[RequestUpdate]) -> ResponseAnswer:
        """Run to the end and return the answer."""
        async with aclosing(updates):  # type: ignore[type-var]
            async for update in updates:
                await self._advance(update)
        return self._answer

    async def events(self, updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[bytes]:
        """Yield events until the request has ended; its failure is one of them."""
        started = False
        update: RequestUpdate | None = None
        async with aclosing(updates):  # type: ignore[type-var]
            try:
                async for update in updates:
                    told: list[Told] = []
                    if not started:
                        told += [
                            (f"response.{s}", self._whole()) for s in ("created", "in_progress")
                        ]
                        started = True
                    told += await self._advance(update)
                    if told:
                        yield self._written(told)
            except Exception as error:
                if not started:
                    raise
                yield self._written(self._fail(as_api_error(error)))

    async def _advance(self, update: RequestUpdate) -> list[Told]:
        """Take in an update and return what to tell of it; the answer is stored before that."""
        sequence = update.sequences[0]
        told = self._builder.build(self._reader.read(sequence), self._logprobs(sequence))
        if update.finished:
            told += self._end(update)
            await self._store()
        return told

    def _logprobs(self, sequence: SequenceUpdate) -> list[TokenLogprob]:
        """Return the log probabilities of what a sequence gained, where they are wanted."""
        if not sequence.new_logprobs:
            return []
        tokenizer, body = self._call.served.renderer.tokenizer, self._body
        ids, found = sequence.new_token_ids, sequence.new_logprobs
        return chat_logprobs(tokenizer, ids, found, body.return_tokens_as_token_ids).content

    def _end(self, update: RequestUpdate) -> list[Told]:
        """Close everything and return what to tell."""
        sequence, told = update.sequences[0], list[Told]()
        cut = sequence.finish_reason is not FinishReason.STOP
        self._builder.close(told, "incomplete" if cut else "completed")
        answer = self._answer
        answer.output = self._builder.items
        answer.status = "incomplete" if cut else "completed"
        if cut:
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
        return [*told, (f"response.{answer.status}", self._whole())]

    def _fail(self, error: ApiError) -> list[Told]:
        self._answer.status = "failed"
        self._answer.error = {"code": "server_error", "message": str(error)}
        self._answer.output = self._builder.items
        return [("response.failed", self._whole())]

    async def _store(self) -> None:
        if self._answer.store:
            messages = [*self._history, as_message(self._answer.output)]
            entry = StoredResponse(
                self._call.tenant,
                msgspec.json.encode(self._answer),
                msgspec.json.encode(messages),
            )
            await self._call.server.store.put(self._answer.id, entry)

    def _whole(self) -> dict[str, Any]:
        return {"response": msgspec.Raw(msgspec.json.encode(self._answer))}

    def _written(self, told: list[Told]) -> bytes:
        written = []
        for name, data in told:
            numbered = {"type": name, "sequence_number": self._num_told, **data}
            written.append(event(numbered, name))
            self._num_told += 1
        return b"".join(written)


async def conversation_of(
    call: Call, body: ResponsesRequest
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the instructions and the conversation that a request goes on with, in chat's form.

    Raises:
        ApiError: An earlier response is not stored, or is another tenant's.
    """
    history = [*(await _earlier(call, body.previous_response_id)), *body.chat_messages()]
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
    messages: list[dict[str, Any]] = msgspec.json.decode(found.messages)
    return messages


async def stored(call: Call, response_id: str, param: str | None = None) -> StoredResponse:
    """Return a stored response.

    Args:
        call: Who asks.
        response_id: Of a response.
        param: The field of the request that names it; none where the URL does.

    Raises:
        ApiError: It is not stored, or is another tenant's.
    """
    found = await call.server.store.get(response_id, call.tenant)
    if found is None:
        raise ApiError(
            "response_not_found",
            f"there is no stored response {response_id!r}; it may have made room for newer ones",
            param,
        )
    return found


def _echo(body: ResponsesRequest, dialogue: Dialogue) -> dict[str, Any]:
    """Return what a response repeats of its request, and what stood for what that left open."""
    values = body.model_dump(
        exclude_none=True,
        by_alias=True,
        include={
            *("tools", "tool_choice", "instructions", "max_output_tokens", "metadata"),
            *("previous_response_id", "reasoning", "store", "temperature", "text", "top_p"),
            *("user", "parallel_tool_calls", "top_logprobs"),
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
    return defaults | values


async def stored_response(call: Call) -> Response:
    """Return a stored response.

    Raises:
        ApiError: It is wanted as a stream, or is not stored.
    """
    for name in ("stream", "starting_after"):
        if call.query_params.get(name, "false").lower() not in ("false", "0"):
            raise ApiError(
                "unsupported_parameter",
                f"{name} is not supported here; a stored response comes as a whole",
                name,
            )
    entry = await stored(call, call.path_params["response_id"])
    return Response(entry.answer, media_type="application/json")


async def delete_response(call: Call) -> DeletedResponse:
    """Forget a stored response."""
    response_id = call.path_params["response_id"]
    await stored(call, response_id)
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
    Endpoint("GET", _ONE, stored_response, "A stored response", answer=ResponseAnswer),
    Endpoint("DELETE", _ONE, delete_response, "Forget a response", answer=DeletedResponse),
]
