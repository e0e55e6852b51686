"""Requests of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hotshoe.errors import RequestError
from hotshoe.text.chat_template import template_message
from hotshoe_server.schemas.base import (
    MAX_ITEMS,
    Metadata,
    Schema,
    ShortList,
    ShortText,
    Variables,
)
from hotshoe_server.schemas.fields import Generation
from hotshoe_server.schemas.grammar import ResponseFormat
from hotshoe_server.schemas.parts import Message, Tool, ToolChoice

#: Variables of chat templates that a request may not set.
RESERVED_VARIABLES = frozenset(
    "messages tools documents add_generation_prompt continue_final_message chat_template self "
    "bos_token eos_token unk_token sep_token pad_token cls_token mask_token".split()
)


class Conversation(Schema):
    """What a prompt is rendered from; `/tokenize` takes it, too."""

    messages: ShortList[Message]
    tools: list[Tool] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)
    chat_template: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    chat_template_kwargs: Variables = None
    documents: list[dict[str, Any]] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    def template_messages(self) -> list[dict[str, Any]]:
        """Return the messages as plain objects.

        Raises:
            RequestError: There are none.
        """
        if not self.messages:
            raise RequestError("messages may not be empty", "messages")
        return [message.model_dump(exclude_none=True) for message in self.messages]

    def template_variables(self) -> dict[str, Any]:
        """Return what the request adds to `Tokenizer.apply_chat_template`.

        Raises:
            RequestError: A name is the server's own.
        """
        found = check_variables(self.chat_template_kwargs or {})
        if self.chat_template is not None:
            found["chat_template"] = self.chat_template
        if self.documents:
            found["documents"] = self.documents
        opens = self.add_generation_prompt
        found["add_generation_prompt"] = not self.continue_final_message if opens is None else opens
        found["continue_final_message"] = self.continue_final_message
        return found


def check_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables for a template.

    Raises:
        RequestError: A name is the server's own.
    """
    taken = RESERVED_VARIABLES.intersection(variables)
    if taken:
        raise RequestError(f"chat_template_kwargs may not set {min(taken)}", "chat_template_kwargs")
    return dict(variables)


class ChatRequest(Generation, Conversation):
    """See OpenAI's API reference, "Chat completions"."""

    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "functions": ([],),
        "function_call": (),
        "best_of": (1,),
        "suffix": ("",),
    }

    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    include_reasoning: bool = True
    echo: bool = False
    add_special_tokens: bool = False

    # OpenAI's, of no effect here.
    metadata: Metadata = None
    store: bool | None = None
    service_tier: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: ShortText | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    # OpenAI's and vLLM's, refused.
    best_of: Any = None
    suffix: Any = None
    modalities: list[str] | None = Field(None, max_length=16, fail_fast=True)
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    functions: list[Any] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)
    function_call: str | dict[str, Any] | None = None

    def template_variables(self) -> dict[str, Any]:
        """Return what the request adds to the template, the effort of reasoning included."""
        effort = (
            {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        )
        return effort | super().template_variables()

    def echoed(self) -> str:
        """Return the text that an answer begins with: the last message's, with `echo`.

        Raises:
            RequestError: `echo` is set, and the answer goes on with no message.
        """
        if not self.echo:
            return ""
        if not self.continue_final_message:
            raise RequestError("echo needs continue_final_message=true", "echo")
        return str(template_message(self.template_messages()[-1])["content"])

    def more_params(self) -> dict[str, Any]:
        """Return sampling parameters that chat spells differently.

        Raises:
            RequestError: `top_logprobs` is given without `logprobs`, or `max_tokens` twice.
        """
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs=true", "top_logprobs")
        more: dict[str, Any] = {}
        if self.logprobs:
            more["logprobs"] = self.top_logprobs or 0
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise RequestError("give max_completion_tokens or max_tokens, not both", "max_tokens")
        if self.max_completion_tokens is not None:
            more["max_tokens"] = self.max_completion_tokens
        return more
