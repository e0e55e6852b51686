"""`/invocations`: chat or completions under the one path that SageMaker calls."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, RootModel, Tag
from starlette.responses import Response

from hotshoe_server.call import Call
from hotshoe_server.endpoints.chat import chat
from hotshoe_server.endpoints.completions import complete
from hotshoe_server.extensions import Endpoint
from hotshoe_server.schemas.answers import ChatAnswer, CompletionAnswer
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.schemas.completions import CompletionRequest


def _kind(value: object) -> str:
    """Tell a conversation, which has messages, from prompts."""
    has_messages = isinstance(value, ChatRequest) or (
        isinstance(value, dict) and "messages" in value
    )
    return "conversation" if has_messages else "prompts"


Conversation = Annotated[ChatRequest, Tag("conversation")]
Prompts = Annotated[CompletionRequest, Tag("prompts")]


class InvocationRequest(RootModel[Annotated[Conversation | Prompts, Discriminator(_kind)]]):
    """A request for chat, which has `messages`, or for completions."""


async def invoke(call: Call, body: InvocationRequest) -> Response | ChatAnswer | CompletionAnswer:
    """Answer a conversation, or continue prompts."""
    call.body_read = body.root
    call.id = body.root.request_id or call.id
    if isinstance(body.root, ChatRequest):
        return await chat(call, body.root)
    return await complete(call, body.root)


ENDPOINTS = [
    Endpoint(
        "POST",
        "/invocations",
        invoke,
        "Chat or completions, for SageMaker",
        generates=True,
        other_types=("application/json", "text/event-stream"),
    )
]
