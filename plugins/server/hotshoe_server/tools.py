"""Which tools a request may call, must call, and how forced calls become a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotshoe.text.parsing import CallGrammar
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.chat import AllowedChoice, NamedChoice, Tool
from hotshoe_server.state import Served

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What a request may do with tools.

    Attributes:
        offered: The tools as the template shows them.
        callable: Schemas of the arguments of those that may be called, by name.
        forced: Whether a call must come.
        parallel: Whether several may.
        strict: Names of those whose arguments must follow their schema even where no call is
            forced.
    """

    offered: Sequence[Mapping[str, Any]] = ()
    callable: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    forced: bool = False
    parallel: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def kept(self) -> Mapping[str, Mapping[str, Any] | None]:
        """Schemas by name, None for a tool whose arguments need not follow theirs."""
        return {n: s if self.forced or n in self.strict else None for n, s in self.callable.items()}

    @property
    def constrained(self) -> bool:
        """Whether a grammar is needed."""
        return self.forced or bool(self.strict)


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
        return ToolPlan()
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
    if not tools and choice not in (None, "none"):
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


def call_grammar(
    written: CallGrammar,
    plan: ToolPlan,
    content: Mapping[str, Any] | None = None,
    marks: Sequence[str] = (),
) -> dict[str, Any]:
    """Describe a response as a structural tag.

    Where a call is forced, it only calls tools; otherwise text is free up to what announces a call,
    and what follows is one of the tools. The arguments of forced calls and of strict tools follow
    their schemas.

    Args:
        written: How calls look.
        plan: What may be called.
        content: Schema of the response's text where it calls no tool; it is not free then.
        marks: Special tokens that free text may hold beside those of calls.
    """
    only = plan.forced or content is not None
    one = not plan.parallel or written.separator is None
    tag: dict[str, Any] = {
        "structures": [_structure(tag.begin, tag.content, tag.end) for tag in written.tags],
        "triggers": list(written.triggers),
        "opening": list(written.openings),
        "separator": written.separator if plan.parallel else None,
        "closing": written.closing,
        "at_least_one": only,
        "stop_after_first": only or one or bool(written.leading),
        "leading": list(written.leading),
    }
    tag |= {"preface": list(written.reasoning)} if only else {"marks": [*written.marks, *marks]}
    if content is not None and written.answer:
        tag["structures"].append(_structure(written.answer, content, ""))
        tag["triggers"].append(written.answer)
    elif content is not None:
        # Text is JSON as well, so that only a mark tells a call from it.
        tag |= {"opening": [o for o in written.openings if _marked(o, written)], "leading": []}
        tag["otherwise"] = content
    return {"type": "structural_tag", **tag}


def _marked(opening: str, written: CallGrammar) -> bool:
    return any((opening + tag.begin).startswith(written.triggers) for tag in written.tags)


def _structure(begin: str, content: Any, end: str) -> dict[str, Any]:
    if isinstance(content, Sequence):
        return {"begin": begin, "parts": list(content), "end": end}
    return {"begin": begin, "schema": ANY_OBJECT if content is None else content, "end": end}
