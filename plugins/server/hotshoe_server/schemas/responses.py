"""Requests of `/v1/responses`, and their translation into chat's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from hotshoe.errors import RequestError
from hotshoe.types import SamplingParams
from hotshoe_server.schemas.base import (
    MAX_ITEMS,
    ByKind,
    Metadata,
    Schema,
    ShortList,
    ShortText,
    Variables,
)
from hotshoe_server.schemas.fields import Generation
from hotshoe_server.schemas.grammar import JsonObjectFormat, JsonSchema, TextFormat
from hotshoe_server.schemas.parts import (
    AllowedChoice,
    AllowedTools,
    Function,
    FunctionName,
    Name,
    NamedChoice,
    Tool,
)

LOGPROBS = "message.output_text.logprobs"
Status = Literal["in_progress", "completed", "incomplete"] | None


class InputText(Schema):
    """Text, as sent or as an earlier answer had it."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str
    annotations: list[Any] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)
    logprobs: list[Any] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)


class InputRefusal(Schema):
    """What a model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


InputPart = Annotated[InputText | InputRefusal, Field(discriminator="type")]
InputContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[ShortList[InputPart], Tag("list")], ByKind
]


class MessageItem(Schema):
    """A message; its type may be left out."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: InputContent
    id: ShortText | None = None
    status: Status = None
    phase: ShortText | None = None


class CallItem(Schema):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: ShortText
    name: ShortText
    arguments: str
    id: ShortText | None = None
    status: Status = None
    namespace: ShortText | None = None


class CallOutputItem(Schema):
    """What a function answered."""

    type: Literal["function_call_output"]
    call_id: ShortText
    output: InputContent
    id: ShortText | None = None
    status: Status = None


class ReasoningItem(Schema):
    """What the model thought."""

    type: Literal["reasoning"]
    id: ShortText | None = None
    summary: list[InputPart] | None = Field(None, max_length=1024, fail_fast=True)
    content: list[InputPart] | None = Field(None, max_length=1024, fail_fast=True)
    encrypted_content: str | None = None
    status: Status = None


class ToolCallItem(Schema):
    """A call of a server's tool, as an earlier answer had it."""

    type: Literal["mcp_call"]
    id: ShortText
    server_label: ShortText
    name: ShortText
    arguments: str
    output: str | None = None
    error: str | None = None
    approval_request_id: ShortText | None = None
    status: ShortText | None = None


class ToolListItem(Schema):
    """The tools of a server, likewise; servers are asked again."""

    type: Literal["mcp_list_tools"]
    id: ShortText | None = None
    server_label: ShortText
    tools: ShortList[Any]
    error: str | None = None


def _item_type(value: Any) -> Any:
    found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return found or "message"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ToolCallItem, Tag("mcp_call")]
    | Annotated[ToolListItem, Tag("mcp_list_tools")],
    Discriminator(_item_type),
]


class FunctionTool(Schema):
    """A function that the model may call."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Literal[False] | None = None

    def as_chat(self) -> Tool:
        """Return it in chat's form."""
        function = Function.model_construct(
            **self.model_dump(exclude={"type", "defer_loading"}, exclude_none=True)
        )
        return Tool.model_construct(type="function", function=function)


class ToolNames(Schema):
    """Some tools of a server."""

    tool_names: list[ShortText] = Field(max_length=1024, fail_fast=True)


class McpTool(Schema):
    """The tools of a server that the operator lists; calls need no approval."""

    type: Literal["mcp"]
    server_label: Name
    server_url: ShortText | None = None
    server_description: str | None = None
    authorization: Annotated[str, Field(max_length=16384, pattern=r"^[!-~]+$")] | None = Field(
        None, exclude=True
    )
    allowed_tools: (
        Annotated[
            Annotated[ShortList[ShortText], Tag("list")] | Annotated[ToolNames, Tag("object")],
            ByKind,
        ]
        | None
    ) = None
    require_approval: Literal["never"] | None = None

    @property
    def allowed_names(self) -> list[str] | None:
        """The tools that may be called; None for all."""
        allowed = self.allowed_tools
        return allowed.tool_names if isinstance(allowed, ToolNames) else allowed


AnyTool = Annotated[FunctionTool | McpTool, Field(discriminator="type")]


class NamedFunction(Schema):
    """Call this function."""

    type: Literal["function"]
    name: Name

    def as_chat(self) -> NamedChoice:
        """Return it in chat's form."""
        name = FunctionName.model_construct(name=self.name)
        return NamedChoice.model_construct(type="function", function=name)


class AllowedFunctions(Schema):
    """Call only some of the functions."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedFunction] = Field(max_length=1024, fail_fast=True)

    def as_chat(self) -> AllowedChoice:
        """Return it in chat's form."""
        tools = [tool.as_chat() for tool in self.tools]
        allowed = AllowedTools.model_construct(mode=self.mode, tools=tools)
        return AllowedChoice.model_construct(type="allowed_tools", allowed_tools=allowed)


FunctionChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")]
    | Annotated[
        Annotated[NamedFunction | AllowedFunctions, Field(discriminator="type")], Tag("object")
    ],
    ByKind,
]


class FlatSchemaFormat(JsonSchema):
    """The schema beside its type."""

    type: Literal["json_schema"]


class TextOptions(Schema):
    """The form of the text."""

    format: (
        Annotated[TextFormat | JsonObjectFormat | FlatSchemaFormat, Field(discriminator="type")]
        | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Schema):
    """How much to think."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ConversationName(Schema):
    """Which conversation."""

    id: ShortText


class ResponsesRequest(Generation):
    """See OpenAI's API reference, "Responses"."""

    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "n": (1,),
        "use_beam_search": (False,),
        "max_tokens": (),
        "prompt_logprobs": (),
        "return_token_ids": (False,),
        "prompt": (),
        "truncation": ("disabled",),
        "context_management": ([],),
        "truncate_prompt_tokens": (),
        "enable_response_messages": (False,),
    }
    RENAMED: ClassVar[Mapping[str, str]] = {"max_tokens": "max_output_tokens"}

    input: Annotated[
        Annotated[str, Tag("text")] | Annotated[ShortList[InputItem], Tag("list")], ByKind
    ]
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: ShortText | None = None
    conversation: (
        Annotated[
            Annotated[ShortText, Tag("text")] | Annotated[ConversationName, Tag("object")], ByKind
        ]
        | None
    ) = None
    tools: list[AnyTool] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)
    tool_choice: FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: Metadata = None
    chat_template_kwargs: Variables = None

    #: Only `LOGPROBS` has an effect.
    include: list[ShortText] | None = Field(None, max_length=64, fail_fast=True)
    top_logprobs: int | None = None

    # OpenAI's, of no effect here.
    service_tier: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: ShortText | None = None

    # OpenAI's, refused.
    prompt: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: list[Any] | None = Field(None, max_length=64, fail_fast=True)

    # vLLM's, refused.
    enable_response_messages: bool | None = None

    @property
    def logprobs(self) -> int | None:
        """How many likely tokens to tell of at each place; None to tell of none."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    def sampling_params(self, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
        """See `Generation.sampling_params`."""
        if self.top_logprobs and self.logprobs is None:
            raise RequestError(f'top_logprobs needs include=["{LOGPROBS}"]', "top_logprobs")
        return super().sampling_params(defaults, logprobs=self.logprobs, **more)

    def chat_tools(self) -> list[Tool]:
        """Return the functions in chat's form."""
        return [tool.as_chat() for tool in self.tools or () if isinstance(tool, FunctionTool)]

    def server_tools(self) -> list[tuple[str, McpTool]]:
        """Return the tools of servers, with their places; none where none may be called."""
        found = enumerate(() if self.tool_choice == "none" else self.tools or ())
        return [(f"tools[{n}]", tool) for n, tool in found if isinstance(tool, McpTool)]

    def chat_choice(self) -> Any:
        """Return `tool_choice` in chat's form."""
        choice = self.tool_choice
        return choice if choice is None or isinstance(choice, str) else choice.as_chat()

    def chat_messages(self) -> list[dict[str, Any]]:
        """Return the input in chat's form, without instructions.

        Raises:
            RequestError: It is empty.
        """
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        if not self.input:
            raise RequestError("input may not be empty", "input")
        return as_messages(self.input)

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the response goes on with.

        Raises:
            RequestError: An earlier response is named as well.
        """
        named = self.conversation
        if named is not None and self.previous_response_id is not None:
            raise RequestError(
                "give conversation or previous_response_id, not both", "conversation"
            )
        return named.id if isinstance(named, ConversationName) else named

    def input_items(self) -> list[Any]:
        """Return the input as items."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input

    def variables(self) -> dict[str, Any]:
        """Return what the request adds to the template."""
        effort = None if self.reasoning is None else self.reasoning.effort
        more = {} if effort is None else {"reasoning_effort": effort}
        return more | (self.chat_template_kwargs or {})


def as_messages(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return items as chat's messages: reasoning, text and calls in a row are one message."""
    messages: list[dict[str, Any]] = []

    def assistant() -> dict[str, Any]:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant"})
        return messages[-1]

    for item in items:
        match item:
            case MessageItem(role="assistant"):
                message = assistant()
                message["content"] = message.get("content", "") + _text(item.content)
            case MessageItem():
                messages.append({"role": item.role, "content": _text(item.content)})
            case ReasoningItem():
                message, thought = assistant(), _text(item.content or item.summary or [])
                earlier = message.get("reasoning_content")
                message["reasoning_content"] = f"{earlier}\n{thought}" if earlier else thought
            case CallItem():
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                assistant().setdefault("tool_calls", []).append(call)
            case ToolCallItem():
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.id, "type": "function", "function": function}
                assistant().setdefault("tool_calls", []).append(call)
                content = item.output or item.error or ""
                messages.append({"role": "tool", "tool_call_id": item.id, "content": content})
            case CallOutputItem():
                content = _text(item.output)
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
    return messages


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(p.text if isinstance(p, InputText) else p.refusal for p in content)
