"""`/api/chat`, `/api/generate`, `/api/embed`, and what is told of models, in Ollama's form.

Served with `--ollama` alone. A stream has one JSON object a line.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from hotshoe import __version__
from hotshoe.text.output_processor import RequestUpdate
from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hotshoe.types import FinishReason
from hotshoe_server.call import Call
from hotshoe_server.conversation import Dialogue, ToolPlan, open_dialogue
from hotshoe_server.endpoints import embeddings
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.fleet import state_of
from hotshoe_server.forms import bounded_grammar
from hotshoe_server.generation import check_answer, generate
from hotshoe_server.pooling import Framed, cut
from hotshoe_server.schemas.embeddings import EmbeddingRequest
from hotshoe_server.schemas.ollama import (
    OllamaChat,
    OllamaEmbed,
    OllamaGenerate,
    OllamaRequest,
    ShowRequest,
)
from hotshoe_server.sse import EventStream, open_stream
from hotshoe_server.state import Served
from hotshoe_server.tools import plan_tools

#: What clients put behind a model's name.
TAG = ":latest"
NS = 10**9
#: When a model is unloaded that stays: clients want a date, and this one is the year 2100.
NEVER_S = 4_102_444_800


def _line(body: Any, name: str | None = None) -> bytes:
    return msgspec.json.encode(body) + b"\n"


class LineStream(EventStream):
    """Sends JSON objects, one a line, in place of events."""

    media_type, write = "application/x-ndjson", staticmethod(_line)


def error_body(error: ApiError) -> dict[str, str]:
    """Return an error in Ollama's form."""
    return {"error": str(error)}


async def chat(call: Call, body: OllamaChat) -> Response:
    """Answer a conversation; without messages, say that the model is loaded."""
    model, served = _chosen(call, body.model)
    if not body.messages:
        return _loaded(model, {"message": {"role": "assistant", "content": ""}})
    tools = plan_tools(served, body.tools, None, None)
    dialogue = await _dialogue(served, body, body.chat_messages(), tools)
    return await _answer(call, body, Exchange(dialogue, model, _in_message))


async def complete(call: Call, body: OllamaGenerate) -> Response:
    """Answer a prompt; without one, say that the model is loaded."""
    model, served = _chosen(call, body.model)
    body.check()
    if not body.prompt:
        return _loaded(model, {"response": ""})
    if body.raw:
        with _format_named():
            grammar = bounded_grammar(served, body.wanted())
        params = _params(served, body, **({} if grammar is None else {"grammar": grammar}))
        rendered = await served.renderer.prompt(body.prompt)
        dialogue = Dialogue(rendered, params, ToolPlan(), None, None)
    else:
        dialogue = await _dialogue(served, body, body.chat_messages(), ToolPlan())
    return await _answer(call, body, Exchange(dialogue, model, _in_response))


async def embed(call: Call, body: OllamaEmbed) -> dict[str, Any]:
    """Make vectors of texts, of whose ends what the context has no room for is left out."""
    model, served = _chosen(call, body.model)
    begun_ns, limit = time.monotonic_ns(), served.client.info.max_model_len
    lead = served.client.info.instructions.chosen()
    prompts = [await served.renderer.prompt(lead + text, content=True) for text in body.texts()]
    if body.truncate:
        tokenizer = served.renderer.tokenizer
        prompts = [cut(tokenizer, Framed(p.token_ids), limit, end=False) for p in prompts]
    asked = EmbeddingRequest(
        model=served.name,
        input=[p.token_ids for p in prompts],
        dimensions=body.dimensions,
    )
    answer = await embeddings.embed(call, asked)
    return {
        "model": model,
        "embeddings": [vector.embedding for vector in answer.data],
        "total_duration": time.monotonic_ns() - begun_ns,
        "load_duration": 0,
        "prompt_eval_count": answer.usage.prompt_tokens,
    }


def _params(served: Served, body: OllamaRequest, **more: Any) -> Any:
    info = served.client.info
    return body.sampling_params(info.sampling_defaults, info.max_model_len, **more)


async def _dialogue(
    served: Served, body: OllamaRequest, messages: list[dict[str, Any]], tools: ToolPlan
) -> Dialogue:
    _params(served, body)  # mistakes are found before the prompt is rendered
    make_params, wanted = partial(_params, served, body), body.wanted()
    with _format_named():
        return await open_dialogue(served, messages, body.variables(), tools, make_params, wanted)


@contextmanager
def _format_named() -> Iterator[None]:
    """Give the form of the text the name that it has here in errors."""
    try:
        yield
    except ApiError as error:
        if error.param == "response_format":
            raise ApiError(error.code, str(error), "format") from None
        raise


async def _answer(call: Call, body: OllamaRequest, exchange: Exchange) -> Response:
    dialogue = exchange.dialogue
    fields = ("options.num_predict", "options")
    lengths = [len(dialogue.rendered.token_ids)]
    check_answer(call.served, dialogue.params, lengths, stream=body.stream, fields=fields)
    updates = generate(
        call,
        exchange.model,
        dialogue.rendered,
        dialogue.params,
        request_id=f"ollama-{call.id}",
        stream=body.stream,
    )
    if body.stream:
        return await open_stream(exchange.lines(updates), error_body=error_body, kind=LineStream)
    return _json(await exchange.whole(updates))


class Exchange:
    """One request on its way.

    Args:
        dialogue: What is run.
        model: Its name in the answer.
        place: Says where an answer has its news.
    """

    def __init__(self, dialogue: Dialogue, model: str, place: Any) -> None:
        self.dialogue = dialogue
        self.model = model
        self._place = place
        self._reader = dialogue.reader()
        self._name = ""
        self._arguments: list[str] = []
        self._start_ns = time.monotonic_ns()

    async def lines(self, updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[bytes]:
        """Yield lines until the request has ended."""
        async with aclosing(updates):  # type: ignore[type-var]
            async for update in updates:
                news = self._news(update)
                told = [self._chunk(part) for part in news]
                if update.finished:
                    told.append(self._end(update, {}))
                if told:
                    yield b"".join(msgspec.json.encode(chunk) + b"\n" for chunk in told)

    async def whole(self, updates: AsyncIterator[RequestUpdate]) -> dict[str, Any]:
        """Run to the end and return the answer."""
        parts: dict[str, list[Any]] = {}
        last: RequestUpdate | None = None
        async with aclosing(updates):  # type: ignore[type-var]
            async for last in updates:
                for part in self._news(last):
                    for name, value in part.items():
                        parts.setdefault(name, []).append(value)
        assert last is not None, "a stream of updates ends with a finished one"
        calls = [call for found in parts.pop("tool_calls", ()) for call in found]
        said: dict[str, Any] = {name: "".join(texts) for name, texts in parts.items()}
        return self._end(last, said | ({"tool_calls": calls} if calls else {}))

    def _news(self, update: RequestUpdate) -> list[dict[str, Any]]:
        events: Iterable[Event] = self._reader.read(update.sequences[0])
        return [part for event in events if (part := self._part(event)) is not None]

    def _part(self, event: Event) -> dict[str, Any] | None:
        """Return what an event adds; a call comes as a whole."""
        match event:
            case ContentDelta(text) | MalformedCall(text):
                return {"content": text}
            case ReasoningDelta(text):
                return {"thinking": text}
            case ToolCallStart(_, name, _):
                self._name, self._arguments = name, []
            case ToolCallArguments(_, text):
                self._arguments.append(text)
            case ToolCallEnd():
                arguments = msgspec.Raw("".join(self._arguments).encode() or b"{}")
                return {"tool_calls": [{"function": {"name": self._name, "arguments": arguments}}]}
        return None

    def _chunk(self, said: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "created_at": _now(), **self._place(said), "done": False}

    def _end(self, update: RequestUpdate, said: dict[str, Any]) -> dict[str, Any]:
        reason, timing = update.sequences[0].finish_reason, update.timing
        first, started = timing.first_token_s, timing.scheduled_s
        cut = reason is FinishReason.LENGTH
        return self._chunk(said) | {
            "done": True,
            "done_reason": "length" if cut else "stop",
            "total_duration": time.monotonic_ns() - self._start_ns,
            "load_duration": 0,
            "prompt_eval_count": update.num_prompt_tokens,
            "prompt_eval_duration": _ns(first - started),
            "eval_count": update.num_generated_tokens,
            "eval_duration": _ns(timing.last_token_s - first),
        }


def _in_message(said: dict[str, Any]) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": "", **said}}


def _in_response(said: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in said.items() if name != "content"}
    return {"response": said.get("content", ""), **rest}


def _ns(seconds: float) -> int:
    return max(0, round(seconds * NS))


def _now() -> str:
    return _written(time.time())


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _loaded(model: str, nothing: dict[str, Any]) -> Response:
    """Answer who only wants a model to be loaded: it is."""
    ends = {"done": True, "done_reason": "load"}
    return _json({"model": model, "created_at": _now(), **nothing, **ends})


def _chosen(call: Call, name: str | None) -> tuple[str, Served]:
    """Return the name to answer under, and the model; `:latest` behind a name means nothing."""
    _, served = call.choose(None if name is None else name.removesuffix(TAG))
    return name or served.name, served


def _details(served: Served) -> dict[str, Any]:
    config = served.client.config
    return {
        "format": "hotshoe",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": str(config.quantization or config.dtype),
    }


async def tags(call: Call) -> dict[str, Any]:
    """List the models."""
    return {
        "models": [
            _card(served, name) | {"modified_at": _written(served.created_s)}
            for served in call.server.models.values()
            for name in served.names
        ]
    }


async def loaded(call: Call) -> dict[str, Any]:
    """List the models that answer at once, with the bytes that they take of the device."""
    return {
        "models": [
            _card(served, served.name)
            | {
                "expires_at": _written(NEVER_S),
                "size_vram": sum(served.client.info.memory.values()),
                "context_length": served.client.info.max_model_len,
            }
            for served in call.server.models.values()
            if state_of(served) == "ready"
        ]
    }


def _card(served: Served, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model": name,
        "size": served.client.info.memory.get("weights", 0),
        "digest": hashlib.sha256(f"{name} {served.fingerprint}".encode()).hexdigest(),
        "details": _details(served),
    }


async def show(call: Call, body: ShowRequest) -> dict[str, Any]:
    """Tell of a model."""
    _, served = _chosen(call, body.model or body.name)
    tokenizer = served.client.tokenizer
    templates = {} if tokenizer is None else tokenizer.chat_templates
    can = {"tools": served.tool_format, "thinking": served.reasoning_format}
    return {
        "modelfile": "",
        "parameters": "",
        "template": templates.get("default", ""),
        "details": _details(served),
        "model_info": {
            "general.architecture": "hotshoe",
            "hotshoe.context_length": served.client.info.max_model_len,
            "hotshoe.vocab_size": served.client.info.vocab_size,
        },
        "capabilities": ["completion", *(name for name, found in can.items() if found)],
        "modified_at": _written(served.created_s),
    }


async def version(call: Call) -> dict[str, str]:
    """Tell the server's version."""
    return {"version": __version__}


def _endpoint(
    path: str, handler: Any, summary: str, lines: bool = False, method: str = "POST"
) -> Endpoint:
    return Endpoint(
        method,
        path,
        handler,
        f"{summary}, in Ollama's form",
        generates=lines or handler is embed,
        other_types=("application/x-ndjson",) if lines else (),
        error_body=error_body,
        any_type=True,
    )


ENDPOINTS = [
    _endpoint("/api/chat", chat, "Answer a conversation", lines=True),
    _endpoint("/api/generate", complete, "Answer a prompt", lines=True),
    _endpoint("/api/embed", embed, "Vectors of texts"),
    _endpoint("/api/show", show, "A model"),
    _endpoint("/api/tags", tags, "The models", method="GET"),
    _endpoint("/api/ps", loaded, "The models that are loaded", method="GET"),
    _endpoint("/api/version", version, "The server's version", method="GET"),
]
