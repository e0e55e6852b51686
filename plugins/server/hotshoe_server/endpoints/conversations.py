"""`/v1/conversations`: named lists of items that responses go on with."""

from __future__ import annotations

import secrets
import time
from typing import Any

from msgspec import Struct
from pydantic import Field

from hotshoe_server.call import Call
from hotshoe_server.conversations import (
    PREFIX,
    Conversation,
    add,
    entry_of,
    find,
    given,
    items_of,
    unknown,
)
from hotshoe_server.endpoints.response_input import InputItems, page
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.schemas.base import Metadata, Schema
from hotshoe_server.schemas.responses import InputItem

#: Items that one request may add.
MAX_ADDED = 20


class NewConversation(Schema):
    """A conversation to begin."""

    items: list[InputItem] | None = Field(None, max_length=MAX_ADDED, fail_fast=True)
    metadata: Metadata = None


class NewMetadata(Schema):
    """What to note of a conversation."""

    metadata: Metadata = Field(...)


class NewItems(Schema):
    """Items to add."""

    items: list[InputItem] = Field(min_length=1, max_length=MAX_ADDED, fail_fast=True)


class DeletedConversation(Struct, tag_field="object", tag="conversation.deleted"):
    """A conversation that is no longer stored."""

    id: str
    deleted: bool = True


async def begin(call: Call, body: NewConversation) -> Conversation:
    """Begin a conversation.

    Raises:
        ApiError: The store has no room for it.
    """
    made = Conversation(
        f"{PREFIX}{secrets.token_hex(12)}", int(time.time()), dict(body.metadata or {})
    )
    if not await call.server.store.put(made.id, entry_of(call, made)):
        message = "the store has no room for the conversation (--response-store-bytes)"
        raise ApiError("invalid_value", message)
    if body.items:
        await add(call, made.id, given(body.items), "items")
    return made


async def conversation(call: Call) -> Conversation:
    """Return a conversation without its items."""
    return await find(call, call.path_params["conversation_id"])


async def change(call: Call, body: NewMetadata) -> Conversation:
    """Replace what is noted of a conversation."""
    found = await find(call, call.path_params["conversation_id"])
    found.metadata = dict(body.metadata or {})
    if not await call.server.store.extend(found.id, call.tenant, (), entry_of(call, found)):
        raise unknown(found.id)
    return found


async def forget(call: Call) -> DeletedConversation:
    """Forget a conversation and its items; responses that were made from it stay."""
    found = await find(call, call.path_params["conversation_id"])
    await call.server.store.delete(found.id, call.tenant)
    return DeletedConversation(found.id)


async def add_items(call: Call, body: NewItems) -> InputItems:
    """Add items to a conversation."""
    found = await find(call, call.path_params["conversation_id"])
    items = given(body.items)
    await add(call, found.id, items, "items")
    return InputItems(items, items[0]["id"], items[-1]["id"], False)


async def list_items(call: Call) -> InputItems:
    """List the items of a conversation.

    Raises:
        ApiError: It is not stored, or a parameter is bad; the parameter is named.
    """
    found = await find(call, call.path_params["conversation_id"])
    return page(call, await items_of(call, found.id))


async def item(call: Call) -> dict[str, Any]:
    """Return an item of a conversation.

    Raises:
        ApiError: There is no such item.
    """
    found = await find(call, call.path_params["conversation_id"])
    wanted = call.path_params["item_id"]
    for kept in await items_of(call, found.id):
        if kept["id"] == wanted:
            return kept
    raise ApiError("not_found", f"there is no item {wanted!r} in this conversation")


async def take_out(call: Call) -> Conversation:
    """Take an item out of a conversation."""
    found = await find(call, call.path_params["conversation_id"])
    gone = await item(call)
    await add(call, found.id, [{"type": "deleted", "id": gone["id"]}])
    return found


_ALL = "/v1/conversations"
_ONE = f"{_ALL}/{{conversation_id}}"
_ITEMS = f"{_ONE}/items"
_ITEM = f"{_ITEMS}/{{item_id}}"
ENDPOINTS = [
    Endpoint("POST", _ALL, begin, "Begin a conversation", answer=Conversation),
    Endpoint("GET", _ONE, conversation, "A conversation", answer=Conversation),
    Endpoint("POST", _ONE, change, "Note something of a conversation", answer=Conversation),
    Endpoint("DELETE", _ONE, forget, "Forget a conversation", answer=DeletedConversation),
    Endpoint("POST", _ITEMS, add_items, "Add to a conversation", answer=InputItems),
    Endpoint("GET", _ITEMS, list_items, "The items of a conversation", answer=InputItems),
    Endpoint("GET", _ITEM, item, "An item of a conversation"),
    Endpoint("DELETE", _ITEM, take_out, "Take an item out", answer=Conversation),
]
