"""Requests in Ollama's form: `/api/chat`, `/api/generate`, `/api/embed` and `/api/show`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from hotshoe.errors import RequestError
from hotshoe.types import SamplingParams
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.base import MAX_ITEMS, ByKind, Schema, ShortList, ShortText, Texts
from hotshoe_server.schemas.grammar import JsonObjectFormat, JsonSchema
from hotshoe_server.schemas.parts import Tool

#: Ollama's option -> the engine's name.
SAMPLED: Mapping[str, str] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
#: Options whose effect is not to be had -> the values that ask for none.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "tfs_z": (1, 1.0),
    "typical_p": (1, 1.0),
    "mirostat": (0,),
    "repeat_last_n": (-1,),
}


class Options(Schema):
    """How to sample; what says how a model is loaded has no effect, as it is loaded."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Texts | None = None
    num_predict: int | None = None
    num_ctx: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    # Refused, unless they ask for nothing.
    tfs_z: float | None = None
    typical_p: float | None = None
    mirostat: int | None = None
    repeat_last_n: int | None = None

    # Of no effect here.
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    penalize_newline: bool | None = None


class Calling(Schema):
    """A function and its arguments."""

    name: ShortText
    arguments: dict[str, Any]
    index: int | None = None
    description: str | None = None


class Called(Schema):
    """A call that the model made."""

    function: Calling
    id: ShortText | None = None
    type: Literal["function"] | None = None


class OllamaMessage(Schema):
    """A message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[str] | None = Field(None, max_length=1024, fail_fast=True)
    tool_calls: list[Called] | None = Field(None, max_length=1024, fail_fast=True)
    tool_name: ShortText | None = None
    tool_call_id: ShortText | None = None


Form = Annotated[Annotated[str, Tag("text")] | Annotated[dict[str, Any], Tag("object")], ByKind]
Think = bool | Literal["low", "medium", "high"]


class OllamaRequest(Schema):
    """What chat and generate share."""

    model: ShortText
    stream: bool = True
    format: Form | None = None
    options: Options = Field(default_factory=Options)
    think: Think | None = None

    # Of no effect here: a model stays loaded.
    keep_alive: str | float | None = None

    def sampling_params(
        self, defaults: Mapping[str, Any], max_model_len: int, **more: Any
    ) -> SamplingParams:
        """Return what the engine takes.

        Args:
            defaults: The model's, for what the request leaves open.
            max_model_len: The longest sequence, which `num_ctx` may not exceed.
            more: Wins over the request.

        Raises:
            ApiError: An option is given whose effect this server cannot give.
            RequestError: A value is out of range; `field` names it.
        """
        options = self.options
        for name, harmless in REFUSED.items():
            value = getattr(options, name)
            if value is not None and value not in harmless:
                message = f"options.{name} is not supported here; leave it out"
                raise ApiError("unsupported_parameter", message, f"options.{name}")
        if options.num_ctx is not None and not 0 < options.num_ctx <= max_model_len:
            message = (
                f"options.num_ctx may be 1 to {max_model_len} here, the model's context length"
            )
            raise RequestError(message, "options.num_ctx")
        values: dict[str, Any] = {"max_tokens": None, **defaults}
        for name, own in SAMPLED.items():
            value = getattr(options, name)
            if value is not None:
                values[own] = value
        if options.num_predict in (-1, -2):  # as many as come
            values["max_tokens"] = None
        try:
            return SamplingParams(**values | more)
        except RequestError as error:
            raise self.renamed(error) from None

    def renamed(self, error: RequestError) -> RequestError:
        """Return an error of the engine's with the name that the field has in this request."""
        own = next((name for name, theirs in SAMPLED.items() if theirs == error.field), None)
        if own is None or error.field is None:
            return error
        place = f"options.{own}"
        return RequestError(str(error).replace(error.field, place, 1), place)

    def wanted(self) -> JsonObjectFormat | JsonSchema | None:
        """Return the form that the text must have.

        Raises:
            RequestError: It is none of Ollama's.
        """
        if self.format in (None, ""):
            return None
        if isinstance(self.format, dict):
            return JsonSchema(name="format", schema=self.format)
        if self.format != "json":
            raise RequestError("format is a JSON schema, or json", "format")
        return JsonObjectFormat(type="json_object")

    def variables(self) -> dict[str, Any]:
        """Return what the request adds to the template."""
        if self.think is None:
            return {}
        effort = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        return {"enable_thinking": self.think is not False, **effort}


class OllamaChat(OllamaRequest):
    """See Ollama's API, "Generate a chat completion"."""

    messages: ShortList[OllamaMessage]
    tools: list[Tool] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)

    def chat_messages(self) -> list[dict[str, Any]]:
        """Return the conversation in chat's form; results of tools find their calls.

        Raises:
            RequestError: A message has images.
        """
        found: list[dict[str, Any]] = []
        waiting: list[tuple[str, str]] = []
        for place, message in enumerate(self.messages):
            if message.images:
                field = f"messages[{place}].images"
                raise RequestError(f"{field}: images are not read here", field)
            said: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.thinking:
                said["reasoning_content"] = message.thinking
            if message.tool_calls:
                said["tool_calls"] = _calls(message.tool_calls, place)
                waiting += [(c["id"], c["function"]["name"]) for c in said["tool_calls"]]
            if message.role == "tool":
                said["tool_call_id"] = message.tool_call_id or _answered(waiting, message.tool_name)
            found.append(said)
        return found


class OllamaGenerate(OllamaRequest):
    """See Ollama's API, "Generate a completion"."""

    prompt: str = ""
    system: str | None = None
    raw: bool = False

    # Refused.
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = Field(None, max_length=MAX_ITEMS, fail_fast=True)
    images: list[str] | None = Field(None, max_length=1024, fail_fast=True)

    def check(self) -> None:
        """Refuse what cannot be done.

        Raises:
            ApiError: A field asks for it; it is named.
        """
        for name in ("suffix", "template", "context", "images"):
            if getattr(self, name):
                message = f"{name} is not supported here; leave it out"
                raise ApiError("unsupported_parameter", message, name)

    def chat_messages(self) -> list[dict[str, Any]]:
        """Return the prompt in chat's form."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]


class OllamaEmbed(Schema):
    """See Ollama's API, "Generate embeddings"; how a model is loaded has no effect."""

    model: ShortText | None = None
    input: Texts
    truncate: bool = True
    dimensions: int | None = None
    options: Options | None = None
    keep_alive: str | float | None = None

    def texts(self) -> list[str]:
        """Return the texts one by one."""
        return [self.input] if isinstance(self.input, str) else self.input


class ShowRequest(Schema):
    """Which model; older clients say `name`."""

    model: ShortText | None = None
    name: ShortText | None = None
    verbose: bool | None = None


def _calls(calls: Sequence[Called], place: int) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id or f"call_{place}_{number}",
            "type": "function",
            "function": {
                "name": call.function.name,
                "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
            },
        }
        for number, call in enumerate(calls)
    ]


def _answered(waiting: list[tuple[str, str]], name: str | None) -> str:
    """Take the first call that waits for an answer, of a tool's if its name is given."""
    found = next((call for call in waiting if name in (None, call[1])), None)
    if found is None:
        return "call"
    waiting.remove(found)
    return found[0]
