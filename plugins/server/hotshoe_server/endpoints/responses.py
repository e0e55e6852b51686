"""`/v1/responses`: answers made of items, stored so that a conversation can go on from them."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
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
from hotshoe_server.forms import limit_thinking
from hotshoe_server.generation import check_answer, check_length, check_wishes, generate
from hotshoe_server.logprobs import chat_logprobs
from hotshoe_server.response_builder import ResponseBuilder, Told, answers_of, as_message
from hotshoe_server.schemas.answers import TokenLogprob
from hotshoe_server.schemas.chat import check_variables
from hotshoe_server.schemas.response_answers import (
    DeletedResponse,
    InputDetails,
    OutputCall,
    OutputDetails,
    OutputToolCall,
    ResponseAnswer,
    ResponseUsage,
)
from hotshoe_server.schemas.responses import ResponsesRequest
from hotshoe_server.sse import event, open_stream
from hotshoe_server.state import Served
from hotshoe_server.store import StoredResponse
from hotshoe_server.tool_rounds import ToolRounds, open_rounds, undecided, unforced
from hotshoe_server.tool_servers import ToolResult
from hotshoe_server.tools import plan_tools

_log = logging.getLogger(__name__)


async def respond(call: Call, body: ResponsesRequest) -> Response | ResponseAnswer:
    """Answer with items."""
    model, served = call.choose(body.model)
    make_params = partial(body.sampling_params, served.client.info.sampling_defaults)
    make_params()  # mistakes are found before the prompt is rendered
    opening, history = await conversation_of(call, body)
    rounds = await open_rounds(call.server.config, body)
    try:
        return await _respond(call, body, model, (opening, history), rounds)
    except BaseException:
        await rounds.close()
        raise


async def _respond(
    call: Call,
    body: ResponsesRequest,
    model: str,
    messages: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    rounds: ToolRounds,
) -> Response | ResponseAnswer:
    served = call.served
    dialogue = await _open(served, body, [*messages[0], *messages[1]], rounds)
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
    exchange = Exchange(call, body, messages, answer, rounds, dialogue.params.max_tokens)
    updates = exchange.run(dialogue)
    if body.background:
        check_length(call, dialogue.rendered.token_ids)
        check_wishes(call, lengths[0], body.priority)
        await begin(call, exchange, exchange.parts(updates))
        return await open_stream(follow(call, answer.id, 0)) if body.stream else answer
    if body.stream:
        return await open_stream(exchange.events(updates))
    return await exchange.whole(updates)


async def _open(
    served: Served,
    body: ResponsesRequest,
    messages: Sequence[dict[str, Any]],
    rounds: ToolRounds,
    later: bool = False,
) -> Dialogue:
    """Render a conversation, and say what may come next.

    Args:
        served: What answers.
        body: What is asked for.
        messages: In chat's form, with what has been said in this response.
        rounds: Tools of servers.
        later: It is a round after the first, where no call is forced.
    """
    choice, tools = body.chat_choice(), [*body.chat_tools(), *rounds.chat_tools()]
    make_params = partial(body.sampling_params, served.client.info.sampling_defaults)
    if later:
        choice = unforced(choice)
    form = None if body.text is None else body.text.format
    dialogue = await open_dialogue(
        served,
        messages,
        check_variables(body.variables()),
        plan_tools(served, tools, choice, body.parallel_tool_calls),
        make_params,
        text_form(form, body.structured_outputs),
    )
    budget = body.thinking_token_budget
    return dialogue if budget is None else limit_thinking(served, dialogue, budget)


class Exchange:
    """One request on its way.

    Args:
        call: Where it came from.
        body: What it asks for.
        messages: Instructions, and the conversation without them, in chat's form.
        answer: Filled in as it comes.
        rounds: Tools of servers; closed in the end.
        limit: Most tokens of all rounds.
    """

    def __init__(
        self,
        call: Call,
        body: ResponsesRequest,
        messages: tuple[list[dict[str, Any]], list[dict[str, Any]]],
        answer: ResponseAnswer,
        rounds: ToolRounds,
        limit: int | None,
    ) -> None:
        self._call = call
        self._body = body
        self._opening, self._history = messages
        self._answer = answer
        self._rounds, self._limit = rounds, limit
        self._builder = ResponseBuilder(rounds.labels)
        self._listed = self._builder.listed(rounds.lists)
        #: What earlier rounds said, in chat's form, and the number of items in it.
        self._said: list[dict[str, Any]] = []
        self._num_said = len(self._builder.items)
        self._usage = ResponseUsage(0, InputDetails(0), 0, OutputDetails(0), 0)
        self._begun = False
        self._num_told = 0

    def run(self, dialogue: Dialogue) -> AsyncIterator[RequestUpdate]:
        """Begin a round."""
        self._reader = dialogue.reader()
        return generate(
            self._call,
            self._answer.model,
            dialogue.rendered,
            dialogue.params,
            request_id=self._answer.id,
            stream=bool(self._body.stream),
            priority=self._body.priority,
        )

    @property
    def answer(self) -> ResponseAnswer:
        """The answer as far as it has come."""
        return self._answer

    async def whole(self, updates: AsyncIterator[RequestUpdate]) -> ResponseAnswer:
        """Run to the end and return the answer."""
        self._begun = True
        async with aclosing(self._steps(updates)) as steps:  # type: ignore[type-var]
            async for _ in steps:
                pass
        return self._answer

    async def events(self, updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[bytes]:
        """Yield events until the request has ended; its failure is one of them."""
        async with aclosing(self.parts(updates)) as parts:  # type: ignore[type-var]
            async for part in parts:
                yield b"".join(part)

    async def parts(self, updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[list[bytes]]:
        """Yield the events of each update; in the background a failure at once is one, too."""
        queued = bool(self._body.background)
        if queued:
            yield self._written(self._telling("created", "queued"))
        async with aclosing(self._steps(updates)) as steps:  # type: ignore[type-var]
            try:
                async for told in steps:
                    if told:
                        yield self._written(told)
            except Exception as error:
                if not (self._begun or queued):
                    raise
                found = as_api_error(error)
                if found.code == "internal_error":
                    _log.error("a response failed", exc_info=error)
                yield self._written(self._fail(found))

    def _telling(self, *names: str) -> list[Told]:
        return [(f"response.{name}", self._whole()) for name in names]

    async def _steps(self, updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[list[Told]]:
        """Yield what to tell of each update, and of calls of servers' tools, round by round."""
        try:
            while True:
                async with aclosing(updates):  # type: ignore[type-var]
                    async for update in updates:
                        yield self._begin() + await self._advance(update)
                if not (calls := undecided(self._builder.items)):
                    return
                over = self._rounds.exhausted
                results = await self._rounds.run(calls)
                told = [t for pair in zip(calls, results, strict=True) for t in self._settle(*pair)]
                further = "max_tool_calls" if over else await self._go_on()
                if isinstance(further, str):
                    yield told + await self._finish(further)
                    return
                yield told
                updates = further
        finally:
            await self._rounds.close()

    def _begin(self) -> list[Told]:
        """Tell of the beginning, with the first update."""
        if self._begun:
            return []
        self._begun = True
        self._answer.status = "in_progress"
        names = ["in_progress"] if self._body.background else ["created", "in_progress"]
        return self._telling(*names) + self._listed

    async def _advance(self, update: RequestUpdate) -> list[Told]:
        """Take in an update and return what to tell of it; the answer is stored before that."""
        sequence = update.sequences[0]
        told = self._builder.build(self._reader.read(sequence), self._logprobs(sequence))
        if not update.finished:
            return told
        self._usage.add(update, self._reader.num_reasoning_tokens)
        ended = sequence.finish_reason is FinishReason.STOP
        if ended and undecided(self._builder.items):
            return told
        cut = "max_output_tokens" if sequence.finish_reason is FinishReason.LENGTH else "abort"
        return told + await self._finish("" if ended else cut)

    def _settle(self, call: OutputToolCall, result: ToolResult) -> list[Told]:
        return self._builder.settle(call, result.text, result.failed)

    async def _go_on(self) -> AsyncIterator[RequestUpdate] | str:
        """Begin the next round; or return what cuts the response off, "" if it is complete."""
        items = self._builder.items[self._num_said :]
        if any(isinstance(item, OutputCall) for item in items):
            return ""  # the client has calls to make as well
        left = None if self._limit is None else self._limit - self._usage.output_tokens
        if left is not None and left < 1:
            return "max_output_tokens"
        self._said += [as_message(items), *answers_of(items)]
        self._num_said = len(self._builder.items)
        messages = [*self._opening, *self._history, *self._said]
        dialogue = await _open(self._call.served, self._body, messages, self._rounds, later=True)
        room = self._call.served.client.info.max_model_len - len(dialogue.rendered.token_ids)
        if left is not None:
            params = replace(dialogue.params, max_tokens=max(min(left, room), 1))
            dialogue = replace(dialogue, params=params)
        return self.run(dialogue)

    async def _finish(self, cut: str) -> list[Told]:
        """End the response, and return what to tell; it is stored before that."""
        told = self._end(cut)
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

    def _end(self, cut: str) -> list[Told]:
        """Close everything and return what to tell."""
        told = list[Told]()
        for call in undecided(self._builder.items) if cut else ():
            call.status = "incomplete"
        self._builder.close(told, "incomplete" if cut else "completed")
        answer = self._answer
        answer.output = self._builder.items
        name = answer.status = "incomplete" if cut else "completed"
        if self._body.background and cut == "abort":
            answer.status = "cancelled"  # which no event is named after
        elif cut:
            answer.incomplete_details = {"reason": cut}
        else:
            answer.completed_at = int(time.time())
        answer.usage = self._usage
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
        items = self._answer.output[self._num_said :]
        own = [*self._said, as_message(items), *answers_of(items)]
        messages = [*self._history, *own]
        return StoredResponse(
            self._call.tenant,
            msgspec.json.encode(self._answer),
            msgspec.json.encode(messages),
            running=self._answer.status in ("queued", "in_progress"),
            followed=bool(self._body.background and self._body.stream),
            num_own=len(own),
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
