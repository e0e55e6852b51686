"""`/v1/messages` and `/v1/messages/count_tokens`, in Anthropic's form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.responses import Response

from hotshoe.text.output_processor import RequestUpdate
from hotshoe_server.call import Call
from hotshoe_server.conversation import Dialogue, open_dialogue
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.forms import bounds_thinking, limit_thinking
from hotshoe_server.generation import check_answer, generate
from hotshoe_server.message_builder import MessageBuilder, Told, message_usage, stop_of
from hotshoe_server.schemas.message_answers import Message, TokenCount
from hotshoe_server.schemas.messages import CountRequest, MessagesRequest
from hotshoe_server.sse import event, open_stream
from hotshoe_server.tools import plan_tools

#: HTTP status -> Anthropic's type of error.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """Return an error in Anthropic's form."""
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


async def create(call: Call, body: MessagesRequest) -> Response | Message:
    """Answer a conversation."""
    model, served = call.choose(body.model)
    body.check()
    make_params = partial(body.params, served.client.info.sampling_defaults)
    make_params()  # mistakes are found before the prompt is rendered
    tools = plan_tools(served, body.chat_tools(), body.chat_choice(), body.parallel)
    dialogue = await open_dialogue(
        served, body.chat_messages(), body.variables(), tools, make_params, body.wanted()
    )
    if body.thinking_budget is not None and bounds_thinking(served):
        dialogue = limit_thinking(served, dialogue, body.thinking_budget)
    lengths = [len(dialogue.rendered.token_ids)]
    check_answer(served, dialogue.params, lengths, stream=body.stream)
    exchange = Exchange(dialogue, f"msg_{call.id}", model)
    updates = generate(
        call,
        model,
        dialogue.rendered,
        dialogue.params,
        request_id=f"msg_{call.id}",
        stream=body.stream,
    )
    if body.stream:
        return await open_stream(exchange.events(updates), "error", error_body)
    return await exchange.whole(updates)


class Exchange:
    """One request on its way.

    Args:
        dialogue: What is run.
        id: Of the message.
        model: Its name in the answer.
    """

    def __init__(self, dialogue: Dialogue, id: str, model: str) -> None:
        self._reader = dialogue.reader()
        self._builder = MessageBuilder()
        self._id = id
        self._model = model

    async def whole(self, updates: AsyncIterator[RequestUpdate]) -> Message:
        """Run to the end and return the answer."""
        message: Message | None = None
        async with aclosing(updates):  # type: ignore[type-var]
            async for update in updates:
                self._builder.build(self._reader.read(update.sequences[0]))
                if update.finished:
                    self._builder.close()
                    message = self._message(update)
        assert message is not None, "a stream of updates ends with a finished one"
        return message

    def _message(self, update: RequestUpdate) -> Message:
        stop = stop_of(update.sequences[0], self._builder.called)
        blocks, usage = self._builder.blocks, message_usage(update)
        return Message(self._id, self._model, blocks, usage, *stop)

    async def events(self, updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[bytes]:
        """Yield events until the request has ended."""
        started = False
        async with aclosing(updates):  # type: ignore[type-var]
            async for update in updates:
                told: list[Told] = []
                if not started:
                    started = True
                    empty = Message(self._id, self._model, [], message_usage(update))
                    told.append({"type": "message_start", "message": empty})
                told += self._builder.build(self._reader.read(update.sequences[0]))
                if update.finished:
                    told += [*self._builder.close(), *self._end(update)]
                if told:
                    yield b"".join(event(fields, fields["type"]) for fields in told)

    def _end(self, update: RequestUpdate) -> list[Told]:
        reason, text = stop_of(update.sequences[0], self._builder.called)
        delta = {"stop_reason": reason, "stop_sequence": text}
        usage = message_usage(update)
        return [
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]


async def count(call: Call, body: CountRequest) -> TokenCount:
    """Count the tokens of the prompt that a conversation becomes."""
    _, served = call.choose(body.model)
    body.check()
    tools = plan_tools(served, body.chat_tools(), body.chat_choice(), body.parallel)
    rendered = await served.renderer.chat(
        body.chat_messages(), tools.offered or None, body.variables()
    )
    return TokenCount(len(rendered.token_ids))


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/messages",
        create,
        "Answer a conversation, in Anthropic's form",
        generates=True,
        answer=Message,
        other_types=("text/event-stream",),
        error_body=error_body,
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        count,
        "Count the tokens of a conversation, in Anthropic's form",
        generates=True,
        answer=TokenCount,
        error_body=error_body,
    ),
]
