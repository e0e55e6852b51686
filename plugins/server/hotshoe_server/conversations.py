"""Conversations that responses go on with: named lists of items, in the store of responses.

The items are what the store calls events, so that several requests may add to one conversation at
once, whichever process they come to. An item that was taken out stays as its number and a mark.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from pydantic import BaseModel, TypeAdapter

from hotshoe_server.call import Call
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.responses import InputItem, as_messages
from hotshoe_server.store import StoredResponse

PREFIX = "conv_"
#: Items of one conversation, those that were taken out included.
MAX_KEPT = 8192
_IDS = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
}
_items: TypeAdapter[list[Any]] = TypeAdapter(list[InputItem])


class Conversation(Struct, tag_field="object", tag="conversation"):
    """A conversation, without its items."""

    id: str
    created_at: int
    metadata: dict[str, str]


def entry_of(call: Call, conversation: Conversation) -> StoredResponse:
    """Return what is stored of a conversation beside its items."""
    return StoredResponse(call.tenant, msgspec.json.encode(conversation), b"")


async def find(call: Call, conversation_id: str, param: str | None = None) -> Conversation:
    """Return a conversation.

    Args:
        call: Who asks.
        conversation_id: Of a conversation.
        param: The field of the request that names it; none where the URL does.

    Raises:
        ApiError: It is not stored, or is another tenant's.
    """
    named = conversation_id.startswith(PREFIX)
    entry = await call.server.store.get(conversation_id, call.tenant) if named else None
    if entry is None:
        raise unknown(conversation_id, param)
    return msgspec.json.decode(entry.answer, type=Conversation)


async def items_of(
    call: Call, conversation_id: str, param: str | None = None
) -> list[dict[str, Any]]:
    """Return the items of a conversation, oldest first.

    Raises:
        ApiError: It is not stored, or is another tenant's.
    """
    kept: dict[str, dict[str, Any]] = {}
    start, total = 0, 1
    while start < total:
        found = await call.server.store.events(conversation_id, call.tenant, start)
        if found is None:
            raise unknown(conversation_id, param)
        await asyncio.to_thread(_read, found.events, kept)
        start, total = start + len(found.events), found.total
    return list(kept.values())


def _read(events: Iterable[bytes], kept: dict[str, dict[str, Any]]) -> None:
    for written in events:
        item = msgspec.json.decode(written)
        if item["type"] == "deleted":
            kept.pop(item["id"], None)
        else:
            kept[item["id"]] = item


async def messages_of(call: Call, conversation_id: str, param: str) -> list[dict[str, Any]]:
    """Return a conversation in chat's form.

    Raises:
        ApiError: It is not stored, or is another tenant's.
    """
    await find(call, conversation_id, param)
    found = await items_of(call, conversation_id, param)
    return await asyncio.to_thread(lambda: as_messages(_items.validate_python(found)))


async def add(
    call: Call, conversation_id: str, items: Sequence[Mapping[str, Any]], param: str | None = None
) -> None:
    """Add items to a conversation.

    Raises:
        ApiError: It is not stored, is full, or the store has no room for it.
    """
    store = call.server.store
    found = await store.events(conversation_id, call.tenant, MAX_KEPT)
    if found is None:
        raise unknown(conversation_id, param)
    if found.total + len(items) > MAX_KEPT:
        message = f"a conversation may have {MAX_KEPT} items, taken out ones included, no more"
        raise ApiError("invalid_value", message, param)
    if not await store.extend(conversation_id, call.tenant, list(map(msgspec.json.encode, items))):
        message = "the conversation has outgrown the store (--response-store-bytes)"
        raise ApiError("invalid_value", message, param)


def given(items: Iterable[BaseModel]) -> list[dict[str, Any]]:
    """Return items of a request as a conversation has them, with ids of their own."""
    found = []
    for item in items:
        values = item.model_dump(exclude_none=True)
        kind, content = values["type"], values.get("content")
        if kind == "message" and isinstance(content, str):
            of = "output_text" if values["role"] == "assistant" else "input_text"
            more = {"annotations": []} if of == "output_text" else {}
            values["content"] = [{"type": of, "text": content, **more}]
        found.append(
            {"status": "completed", **values, "id": f"{_IDS[kind]}_{secrets.token_hex(12)}"}
        )
    return found


def unknown(conversation_id: str, param: str | None = None) -> ApiError:
    """Return the error that there is no such conversation."""
    return ApiError(
        "not_found",
        f"there is no conversation {conversation_id!r}; it may have made room for newer ones",
        param,
    )
