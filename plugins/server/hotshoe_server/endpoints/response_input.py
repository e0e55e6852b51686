"""What responses are made from: their tokens counted before, their items listed afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from hotshoe_server.background import stored
from hotshoe_server.call import Call
from hotshoe_server.endpoints.responses import conversation_of
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.schemas.chat import check_variables
from hotshoe_server.schemas.responses import ResponsesRequest
from hotshoe_server.tool_rounds import tools_of
from hotshoe_server.tools import plan_tools

MAX_ITEMS, DEFAULT_ITEMS = 100, 20
ORDERS = ("asc", "desc")


class InputTokens(Struct, tag_field="object", tag="response.input_tokens"):
    """A count of tokens."""

    input_tokens: int


class InputItems(Struct, tag_field="object", tag="list"):
    """Some of the items; `has_more` says that others follow."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


async def input_tokens(call: Call, body: ResponsesRequest) -> InputTokens:
    """Count the tokens of the prompt that a request becomes."""
    _, served = call.choose(body.model)
    body.sampling_params(served.client.info.sampling_defaults)  # mistakes are named
    async with tools_of(call, body) as rounds:
        offered = [*body.chat_tools(), *rounds.chat_tools()]
    tools = plan_tools(served, offered, body.chat_choice(), body.parallel_tool_calls)
    opening, history = await conversation_of(call, body)
    rendered = await served.renderer.chat(
        [*opening, *history], tools.offered or None, check_variables(body.variables())
    )
    return InputTokens(len(rendered.token_ids))


async def input_items(call: Call) -> InputItems:
    """List what a stored response was made from, the turns before it included.

    Raises:
        ApiError: It is not stored, or a parameter is bad; the parameter is named.
    """
    response_id = call.path_params["response_id"]
    entry = await stored(call, response_id)
    messages = msgspec.json.decode(entry.messages)[: -entry.num_own]
    return page(call, list(_items(messages, response_id.removeprefix("resp_"))))


def page(call: Call, items: list[dict[str, Any]]) -> InputItems:
    """Return those of some items that the parameters `limit`, `order` and `after` ask for.

    Args:
        call: Who asks.
        items: All of them, oldest first.

    Raises:
        ApiError: A parameter is bad; it is named.
    """
    limit, order = _limit(call), call.query_params.get("order", "desc")
    if order not in ORDERS:
        raise ApiError("invalid_value", f"order must be asc or desc, not {order!r}", "order")
    if order == "desc":
        items.reverse()
    after = call.query_params.get("after")
    if after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise ApiError("invalid_value", f"there is no item {after!r} here", "after")
        items = items[place + 1 :]
    shown = items[:limit]
    ends = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return InputItems(shown, *ends, len(items) > limit)


def _limit(call: Call) -> int:
    given = call.query_params.get("limit", str(DEFAULT_ITEMS))
    if not (given.isascii() and given.isdecimal() and len(given) < 4):
        raise ApiError("invalid_value", f"limit must be 1 to {MAX_ITEMS}, not {given!r}", "limit")
    if not 1 <= int(given) <= MAX_ITEMS:
        raise ApiError("invalid_value", f"limit must be 1 to {MAX_ITEMS}, not {given}", "limit")
    return int(given)


def _items(messages: Sequence[Mapping[str, Any]], key: str) -> Iterator[dict[str, Any]]:
    """Yield chat's messages as items; ids follow from their places."""
    for place, message in enumerate(messages):
        role, text = message["role"], message.get("content")
        if role == "tool":
            called = {"call_id": message.get("tool_call_id"), "output": text}
            yield _item("function_call_output", f"fco_{key}_{place}", called)
            continue
        if thoughts := message.get("reasoning_content"):
            said = {"summary": [], "content": [{"type": "reasoning_text", "text": thoughts}]}
            yield _item("reasoning", f"rs_{key}_{place}", said)
        if text:
            kind = "output_text" if role == "assistant" else "input_text"
            more = {"annotations": []} if role == "assistant" else {}
            content = [{"type": kind, "text": text, **more}]
            yield _item("message", f"msg_{key}_{place}", {"role": role, "content": content})
        for number, call in enumerate(message.get("tool_calls") or ()):
            yield _item(
                "function_call",
                f"fc_{key}_{place}_{number}",
                {"call_id": call["id"], **call["function"]},
            )


def _item(kind: str, id: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind, "id": id, "status": "completed", **values}


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/responses/input_tokens",
        input_tokens,
        "Count the tokens of a response's input",
        generates=True,
        answer=InputTokens,
    ),
    Endpoint(
        "GET",
        "/v1/responses/{response_id}/input_items",
        input_items,
        "What a stored response was made from",
        answer=InputItems,
    ),
]
