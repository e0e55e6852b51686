"""What conversations are made of: messages and their parts, tools and the choice of one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from hotshoe_server.schemas.base import ByKind, Schema, ShortList, ShortText

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class TextPart(Schema):
    """Text."""

    type: Literal["text"]
    text: str


class RefusalPart(Schema):
    """What a model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


Parts = ShortList[Annotated[TextPart | RefusalPart, Field(discriminator="type")]]
Content = Annotated[Annotated[str, Tag("text")] | Annotated[Parts, Tag("list")], ByKind]


class InstructionMessage(Schema):
    """What the application wants."""

    role: Literal["system", "developer"]
    content: Content
    name: ShortText | None = None


class UserMessage(Schema):
    """What the user says."""

    role: Literal["user"]
    content: Content
    name: ShortText | None = None


class CalledFunction(Schema):
    """A function and its arguments, JSON as text."""

    name: ShortText
    arguments: str


class ToolCall(Schema):
    """A call that the model made."""

    id: ShortText
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class AssistantMessage(Schema):
    """What the model said, as an answer of this server has it."""

    role: Literal["assistant"]
    content: Content | None = None
    name: ShortText | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=1024, fail_fast=True)
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: None = None
    annotations: list[Any] | None = Field(None, max_length=1024, fail_fast=True)
    function_call: None = None


class ToolMessage(Schema):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: ShortText
    name: ShortText | None = None


Message = Annotated[
    InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class Function(Schema):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Schema):
    """A tool; only functions exist here."""

    type: Literal["function"]
    function: Function
    defer_loading: Literal[False] | None = None


class FunctionName(Schema):
    """A name."""

    name: Name


class NamedChoice(Schema):
    """Call this function."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Schema):
    """Some of the tools, and whether one must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedChoice] = Field(max_length=1024, fail_fast=True)


class AllowedChoice(Schema):
    """Call only some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")]
    | Annotated[Annotated[NamedChoice | AllowedChoice, Field(discriminator="type")], Tag("object")],
    ByKind,
]
