"""Which tools a request may call, must call, and how forced calls become a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe_server.conversation import NO_TOOLS, ToolPlan
from hotshoe_server.errors import ApiError
from hotshoe_server.forms import ANY_OBJECT
from hotshoe_server.schemas.parts import AllowedChoice, NamedChoice, Tool
from hotshoe_server.state import Served


def plan_tools(
    served: Served, tools: Sequence[Tool] | None, choice: Any, parallel: bool | None
) -> ToolPlan:
    """Combine `tools`, `tool_choice` and `parallel_tool_calls`.

    Raises:
        ApiError: They do not fit together, or the model's way to call tools is not known.
    """
    by_name = {tool.function.name: tool for tool in tools or ()}
    _check(served, tools or (), len(by_name), choice)
    allowed, forced = _choice(choice, by_name)
    if not allowed:
        return NO_TOOLS
    strict = frozenset(name for name in allowed if by_name[name].function.strict)
    _check_format(served, forced, bool(strict))
    return ToolPlan(
        [tool.model_dump(exclude_none=True) for tool in by_name.values()],
        {name: by_name[name].function.parameters or ANY_OBJECT for name in allowed},
        forced,
        parallel is not False,
        strict,
    )


def _check(served: Served, tools: Sequence[Tool], num_names: int, choice: Any) -> None:
    if len(tools) > served.config.max_tools:
        raise ApiError(
            "invalid_value",
            f"there are {len(tools)} tools, but a request may have {served.config.max_tools} "
            "(--max-tools)",
            "tools",
        )
    if num_names < len(tools):
        raise ApiError("invalid_value", "two tools have the same name", "tools")
    if not tools and choice not in (None, "none", "auto"):  # with which no tool need be called
        raise ApiError("invalid_value", "tool_choice needs tools", "tool_choice")


def _choice(choice: Any, by_name: Mapping[str, Tool]) -> tuple[Sequence[str], bool]:
    """Return the names that may be called, and whether one must be."""
    names: Sequence[str] = list(by_name)
    forced = False
    match choice:
        case "none":
            return (), False
        case "required":
            forced = True
        case NamedChoice():
            names, forced = [choice.function.name], True
        case AllowedChoice():
            allowed = choice.allowed_tools
            names, forced = [t.function.name for t in allowed.tools], allowed.mode == "required"
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise ApiError("invalid_value", f"there is no tool {unknown[0]}", "tool_choice")
    return names, forced


def _check_format(served: Served, forced: bool, strict: bool) -> None:
    found = served.tool_format
    if found is None:
        message = "how this model calls tools is not known; start the server with a "
        raise ApiError("unsupported_value", message + "--tool-call-parser", "tools")
    if forced and found.calls is None:
        message = f"calls in the format {found.name} cannot be forced; use tool_choice auto"
        raise ApiError("unsupported_value", message, "tool_choice")
    if strict and not forced and found.calls is None:
        message = f"strict cannot be kept in the format {found.name}"
        raise ApiError("unsupported_value", f"{message}; leave it out", "tools")
    if not forced and not served.config.enable_auto_tool_choice:
        message = "tool_choice auto is switched off here (--no-enable-auto-tool-choice)"
        raise ApiError("unsupported_value", message, "tool_choice")
