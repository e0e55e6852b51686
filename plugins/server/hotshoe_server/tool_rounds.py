"""Tools of servers within one response: which the model is offered, and what calls of them give.

The model calls; this asks the servers, and the response goes on with their answers, round by round,
until the model calls none or the limit of calls is reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hotshoe_server.call import Call
from hotshoe_server.config import ServerConfig
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.parts import AllowedChoice, Function, Tool
from hotshoe_server.schemas.response_answers import OutputToolCall, OutputToolList
from hotshoe_server.schemas.responses import McpTool, ResponsesRequest
from hotshoe_server.tool_servers import (
    Limits,
    ToolInfo,
    ToolResult,
    ToolServerError,
    ToolSession,
    find_server,
    parse_arguments,
)


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool that the model may call."""

    label: str
    session: ToolSession
    info: ToolInfo

    def as_chat(self) -> Tool:
        """Return it in chat's form."""
        info = self.info
        function = Function.model_construct(
            name=info.name, description=info.description, parameters=dict(info.input_schema)
        )
        return Tool.model_construct(type="function", function=function)


class ToolRounds:
    """The tools of one response. Close them, come what may.

    Args:
        num_calls: How many calls may be made.

    Attributes:
        lists: What is told of each server.
        offered: By name.
    """

    def __init__(self, num_calls: int) -> None:
        self._num_left = num_calls
        self._sessions: list[ToolSession] = []
        self.lists: list[OutputToolList] = []
        self.offered: dict[str, Offered] = {}

    async def open(self, config: ServerConfig, tools: Sequence[tuple[str, McpTool]]) -> None:
        """Ask servers for their tools.

        Args:
            config: Which servers may be asked.
            tools: What a request says of each, with its place there.

        Raises:
            ApiError: One is not listed or does not answer, or two tools have one name.
        """
        limits = Limits(config.tool_timeout_s, config.tool_answer_bytes)
        for place, tool in tools:
            label, url = tool.server_label, tool.server_url
            session = ToolSession(
                find_server(config.tool_servers, label, url, place), tool.authorization, limits
            )
            self._sessions.append(session)
            try:
                found = await session.open()
            except ToolServerError as error:
                message = f"the tools of server {label} cannot be listed: {error}"
                raise ApiError("tool_server_failed", message, place) from None
            self._offer(place, tool, session, found)

    def _offer(
        self, place: str, tool: McpTool, session: ToolSession, found: Sequence[ToolInfo]
    ) -> None:
        allowed = tool.allowed_names
        if allowed is not None:
            if unknown := sorted(set(allowed) - {info.name for info in found}):
                message = f"server {tool.server_label} has no tool {unknown[0]}"
                raise ApiError("invalid_value", message, f"{place}.allowed_tools")
            found = [info for info in found if info.name in allowed]
        for info in found:
            if info.name in self.offered:
                message = f"two servers have a tool {info.name}; name one in allowed_tools"
                raise ApiError("invalid_value", message, f"{place}.allowed_tools")
            self.offered[info.name] = Offered(tool.server_label, session, info)
        self.lists.append(OutputToolList.of(tool.server_label, found))

    @property
    def labels(self) -> Mapping[str, str]:
        """The server of each tool."""
        return {name: offered.label for name, offered in self.offered.items()}

    @property
    def exhausted(self) -> bool:
        """True when no call may be made any more."""
        return self._num_left <= 0

    def chat_tools(self) -> list[Tool]:
        """Return the tools in chat's form."""
        return [offered.as_chat() for offered in self.offered.values()]

    async def run(self, calls: Iterable[OutputToolCall]) -> list[ToolResult]:
        """Make calls, all at once, and return what each gave."""
        return await asyncio.gather(*(self._call(call) for call in calls))

    async def _call(self, call: OutputToolCall) -> ToolResult:
        arguments = parse_arguments(call.arguments)
        if arguments is None:
            return ToolResult("the arguments are no JSON object", failed=True)
        if self.exhausted:
            return ToolResult("not called: the limit of calls is reached", failed=True)
        self._num_left -= 1
        try:
            return await self.offered[call.name].session.call(call.name, arguments)
        except ToolServerError as error:
            return ToolResult(f"the call failed: {error}", failed=True)

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*(session.close() for session in self._sessions))
        self._sessions = []


async def open_rounds(config: ServerConfig, body: ResponsesRequest) -> ToolRounds:
    """Return the tools of servers that a request names.

    Raises:
        ApiError: One cannot be used; or `max_tool_calls` has nothing to bound, or is no count.
    """
    asked = body.max_tool_calls
    if asked is not None and (asked < 1 or not body.server_tools()):
        message = "max_tool_calls is 1 or more, and bounds calls of tools of type mcp alone"
        raise ApiError("invalid_value", message, "max_tool_calls")
    rounds = ToolRounds(min(asked or config.max_tool_calls, config.max_tool_calls))
    try:
        await rounds.open(config, body.server_tools())
    except BaseException:
        await rounds.close()
        raise
    return rounds


@asynccontextmanager
async def tools_of(call: Call, body: ResponsesRequest) -> AsyncIterator[ToolRounds]:
    """Have the tools of servers that a request names, and nobody else takes over."""
    rounds = await open_rounds(call.server.config, body)
    try:
        yield rounds
    finally:
        await rounds.close()


def unforced(choice: Any) -> Any:
    """Return a choice of tools, in chat's form, without the need to call one."""
    if isinstance(choice, AllowedChoice):
        allowed = choice.allowed_tools.model_copy(update={"mode": "auto"})
        return choice.model_copy(update={"allowed_tools": allowed})
    return choice if choice == "none" else None


def undecided(items: Sequence[Any]) -> list[OutputToolCall]:
    """Return the calls among items that wait to be made."""
    calls = [item for item in items if isinstance(item, OutputToolCall)]
    return [call for call in calls if call.status == "in_progress"]
