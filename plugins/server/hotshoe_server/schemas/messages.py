"""Requests of `/v1/messages`, in Anthropic's form, and their translation into chat's messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from hotshoe.errors import RequestError
from hotshoe.types import SamplingParams
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.base import MAX_ITEMS, ByKind, Schema, ShortList, ShortText, Wishes
from hotshoe_server.schemas.grammar import JsonSchema
from hotshoe_server.schemas.parts import Function, FunctionName, NamedChoice, Tool

#: What a tool answers begins so where it says that it failed; chat templates know no mark for it.
FAILED = "Error: "
#: An edit of the conversation that takes nothing out, which Claude Code asks for.
KEEPS_ALL = {"type": "clear_thinking_20251015", "keep": "all"}


class Block(Schema):
    """What every block may have, of no effect here."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str
    citations: list[Any] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)


class ForeignBlock(Schema, extra="allow"):
    """A block of a kind that this server cannot read."""

    type: ShortText


class ToolUseBlock(Block):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: ShortText
    name: ShortText
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ThinkingBlock(Schema):
    """What the model thought; the signature of another server means nothing here."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


def _kind(value: Any) -> str:
    found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return found if isinstance(found, str) and found in _KINDS else "foreign"


Texts = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[ForeignBlock, Tag("foreign")],
    Discriminator(lambda value: "text" if _kind(value) == "text" else "foreign"),
]
TextContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[ShortList[Texts], Tag("list")], ByKind
]


class ToolResultBlock(Block):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: ShortText
    content: TextContent | None = None
    is_error: bool = False


_KINDS = frozenset({"text", "tool_use", "tool_result", "thinking"})
AnyBlock = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[ForeignBlock, Tag("foreign")],
    Discriminator(_kind),
]


class InputMessage(Schema):
    """A message of the user, with results of tools, or of the model."""

    role: Literal["user", "assistant"]
    content: Annotated[
        Annotated[str, Tag("text")] | Annotated[ShortList[AnyBlock], Tag("list")], ByKind
    ]


def _custom(kind: object) -> object:
    """Refuse a tool that is no function of the client's, such as `web_search_20250305`."""
    if isinstance(kind, str) and kind != "custom":
        message = "tools of type {kind} run at Anthropic, not here; leave them out"
        raise PydanticCustomError("foreign_tool", message, {"kind": kind[:64]})
    return kind


class CustomTool(Block):
    """A function that the model may call."""

    type: Annotated[Literal["custom"] | None, BeforeValidator(_custom)] = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None

    def as_chat(self) -> Tool:
        """Return it in chat's form."""
        function = Function.model_construct(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            strict=self.strict,
        )
        return Tool.model_construct(type="function", function=function)


class ToolChoice(Schema):
    """Whether and which tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: ShortText | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Schema):
    """Whether to think, and how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    display: ShortText | None = None


class OutputFormat(Schema):
    """The form of the text."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Schema):
    """How much effort to spend, and the form of the text."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Schema):
    """What a prompt is made from; see Anthropic's API reference, "Count tokens"."""

    model: ShortText | None = None
    messages: ShortList[InputMessage]
    system: TextContent | None = None
    tools: list[CustomTool] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None

    # Refused unless they ask for nothing.
    mcp_servers: list[Any] | None = Field(None, max_length=64, fail_fast=True)
    context_management: dict[str, Any] | None = None

    def check(self) -> None:
        """Refuse what this server cannot give.

        Raises:
            ApiError: The field is named.
        """
        if not _takes_nothing_out(self.context_management or {}):
            raise ApiError(
                "unsupported_parameter",
                "context_management is not supported here: the server takes nothing out of a "
                "conversation",
                "context_management",
            )
        if self.mcp_servers:
            raise ApiError(
                "unsupported_parameter", "mcp_servers is not supported here", "mcp_servers"
            )

    def chat_tools(self) -> list[Tool]:
        """Return the tools in chat's form."""
        return [tool.as_chat() for tool in self.tools or ()]

    def chat_choice(self) -> Any:
        """Return `tool_choice` in chat's form.

        Raises:
            RequestError: It names a tool without a name.
        """
        choice = self.tool_choice
        if choice is None or choice.type in ("auto", "none"):
            return None if choice is None else choice.type
        if choice.type == "any":
            return "required"
        if choice.name is None:
            raise RequestError("tool_choice of type tool needs a name", "tool_choice.name")
        name = FunctionName.model_construct(name=choice.name)
        return NamedChoice.model_construct(type="function", function=name)

    @property
    def parallel(self) -> bool:
        """Whether several tools may be called at once."""
        return not (self.tool_choice and self.tool_choice.disable_parallel_tool_use)

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens of reasoning; None sets no limit."""
        return None if self.thinking is None else self.thinking.budget_tokens

    def wanted(self) -> JsonSchema | None:
        """Return the form that the text must have."""
        found = self.output_config and self.output_config.format
        return JsonSchema(name="output", schema=found.schema_) if found else None

    def variables(self) -> dict[str, Any]:
        """Return what the request adds to the template."""
        continues = self.messages[-1].role == "assistant" if self.messages else False
        found: dict[str, Any] = {
            "add_generation_prompt": not continues,
            "continue_final_message": continues,
        }
        if self.thinking is not None:
            found["enable_thinking"] = self.thinking.type != "disabled"
        if self.output_config is not None and self.output_config.effort is not None:
            found["reasoning_effort"] = self.output_config.effort
        return found

    def chat_messages(self) -> list[dict[str, Any]]:
        """Return the conversation in chat's form.

        Raises:
            RequestError: There is no message, or a block that cannot be read.
        """
        if not self.messages:
            raise RequestError("messages may not be empty", "messages")
        messages = [
            found
            for number, message in enumerate(self.messages)
            for found in _chat_messages(message, f"messages[{number}]")
        ]
        if self.system:
            messages.insert(0, {"role": "system", "content": _text(self.system, "system")})
        return messages


class MessagesRequest(CountRequest):
    """See Anthropic's API reference, "Create a message"."""

    max_tokens: int
    stream: bool = False
    stop_sequences: ShortList[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    # Of no effect here.
    metadata: dict[str, Any] | None = None
    service_tier: ShortText | None = None
    inference_geo: ShortText | None = None

    def wishes(self) -> Wishes:
        """See `Schema.wishes`."""
        return Wishes(max_tokens_field="max_tokens", max_tokens=self.max_tokens)

    def params(self, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
        """Return what the engine takes.

        Raises:
            RequestError: A value is out of range; `field` names it.
        """
        given = {
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }
        found = {name: value for name, value in given.items() if value is not None}
        try:
            return SamplingParams(**{**defaults, **found, **more})
        except RequestError as error:
            raise self.renamed(error) from None

    def renamed(self, error: RequestError) -> RequestError:
        """Return an error of the engine's with the name that the field has in this request."""
        if error.field != "stop":
            return error
        return RequestError(str(error).replace("stop", "stop_sequences", 1), "stop_sequences")


def _takes_nothing_out(management: Mapping[str, Any]) -> bool:
    edits = management.get("edits") or []
    known = isinstance(edits, list) and management.keys() <= {"edits"}
    return known and all(edit == KEEPS_ALL for edit in edits)


def _chat_messages(message: InputMessage, place: str) -> Iterator[dict[str, Any]]:
    """Yield a message in chat's form; results of tools come as messages of their own."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
    elif message.role == "user":
        yield from _from_user(message.content, place)
    else:
        yield _from_model(message.content, place)


def _from_user(blocks: Sequence[Any], place: str) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    for number, block in enumerate(blocks):
        here = f"{place}.content[{number}]"
        match block:
            case TextBlock():
                texts.append(block.text)
            case ToolResultBlock():
                if texts:  # what was said before the result
                    yield {"role": "user", "content": "\n".join(texts)}
                    texts = []
                yield _result(block, here)
            case _:
                raise _unreadable(block.type, here, "user")
    if texts or not blocks:
        yield {"role": "user", "content": "\n".join(texts)}


def _from_model(blocks: Sequence[Any], place: str) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": ""}
    thoughts: list[str] = []
    for number, block in enumerate(blocks):
        match block:
            case TextBlock():
                found["content"] += block.text
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                found.setdefault("tool_calls", []).append(_call(block))
            case ForeignBlock(type="redacted_thinking"):
                pass  # nobody else can read it
            case _:
                raise _unreadable(block.type, f"{place}.content[{number}]", "assistant")
    return found | ({"reasoning_content": "\n".join(thoughts)} if thoughts else {})


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"id": block.id, "type": "function", "function": function}


def _result(block: ToolResultBlock, place: str) -> dict[str, Any]:
    text = _text(block.content or "", f"{place}.content")
    said = FAILED + text if block.is_error and not text.startswith(FAILED) else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": said}


def _text(content: str | Sequence[TextBlock | ForeignBlock], place: str) -> str:
    if isinstance(content, str):
        return content
    parts = []
    for number, part in enumerate(content):
        if not isinstance(part, TextBlock):
            raise _unreadable(part.type, f"{place}[{number}]")
        parts.append(part.text)
    return "\n".join(parts)


def _unreadable(kind: str, place: str, role: str = "") -> RequestError:
    of = f" of role {role}" if role and kind in _KINDS else ""
    return RequestError(f"{place}: a block of type {kind}{of} cannot be read here", place)
