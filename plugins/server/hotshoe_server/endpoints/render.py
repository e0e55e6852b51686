"""Chat and completions in two halves around `/inference/v1/generate`, in vLLM's form.

Rendering turns a request into one for tokens, which any server of the model can run. Derendering
turns its answer into that of the request: text, reasoning and calls.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from hotshoe.text.output_processor import RequestUpdate
from hotshoe.text.repetition import BOUNDS
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import (
    CompletionOutput,
    GrammarSpec,
    SamplingParams,
)
from hotshoe_server.call import Call
from hotshoe_server.conversation import Dialogue, ToolPlan
from hotshoe_server.derender_stream import (
    chat_chunk,
    chat_logprobs_read,
    completion_chunk,
    completion_logprobs_read,
    outputs,
    replayed,
)
from hotshoe_server.endpoints import chat, completions
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.generation import check_length, check_wishes, finish_reason
from hotshoe_server.renderer import Rendered
from hotshoe_server.schemas.answers import (
    ChatAnswer,
    CompletionAnswer,
    CompletionChoice,
)
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.schemas.completions import CompletionRequest
from hotshoe_server.schemas.fields import Generation
from hotshoe_server.schemas.render import (
    AnswerRead,
    ChoiceRead,
    DerenderChat,
    DerenderCompletion,
    Derendered,
    RenderedRequest,
    usage_read,
)
from hotshoe_server.state import Served

#: Parameters that a request for tokens has under other names, or not at all.
_APART = ("grammar", "adapter", "bad_words_token_ids", "repetition_detection")
#: Kind of a grammar -> its name in `structured_outputs`, where these differ.
_FORMS = {"json_schema": "json", "ebnf": "grammar"}


async def render_chat(call: Call, body: ChatRequest) -> RenderedRequest:
    """Return what to generate for a conversation."""
    model, _, dialogue = await chat.prepare(call, body)
    return _request(call, body, f"chatcmpl-{call.id}", dialogue.rendered, dialogue.params, model)


async def render_completion(call: Call, body: CompletionRequest) -> list[RenderedRequest]:
    """Return what to generate for each prompt."""
    if body.echo:
        message = "echo repeats the prompt, which a request for tokens cannot; leave it out"
        raise ApiError("unsupported_parameter", message, "echo")
    if body.prompt_embeds:
        message = "prompt_embeds have no token ids; send them to /v1/completions"
        raise ApiError("unsupported_parameter", message, "prompt_embeds")
    model, params, prompts = await completions.prepare(call, body)
    name = f"cmpl-{call.id}"
    return [
        _request(call, body, f"{name}-{number}", prompt, params, model)
        for number, prompt in enumerate(prompts)
    ]


def _request(
    call: Call, body: Generation, name: str, prompt: Rendered, params: SamplingParams, model: str
) -> RenderedRequest:
    check_length(call, prompt.token_ids)
    check_wishes(call, len(prompt.token_ids), body.priority)
    for field in ("use_beam_search", "thinking_token_budget"):
        if getattr(body, field) not in (None, False):
            message = f"{field} has no form in a request for tokens; leave it out"
            raise ApiError("unsupported_parameter", message, field)
    options = None if body.stream_options is None else body.stream_options.model_dump()
    return RenderedRequest(
        name,
        prompt.token_ids,
        _written(params),
        model,
        bool(body.stream),
        options,
        body.cache_salt,
        body.priority,
    )


def _written(params: SamplingParams) -> dict[str, Any]:
    """Return parameters as `/inference/v1/generate` takes them."""
    found: dict[str, Any] = {
        field.name: value
        for field in fields(params)
        if field.name not in _APART and (value := getattr(params, field.name)) not in (None, (), {})
    }
    found["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    if params.repetition_detection is not None:
        pairs = zip(BOUNDS, params.repetition_detection, strict=True)
        found["repetition_detection"] = dict(pairs)
    if params.grammar is not None:
        found["structured_outputs"] = _form(params.grammar)
    return found


def _form(spec: GrammarSpec) -> dict[str, Any]:
    value: Any = spec.value
    if spec.kind in ("choice", "json_schema", "structural_tag"):
        value = json.loads(value)
    found = {_FORMS.get(spec.kind, spec.kind): True if spec.kind == "json_object" else value}
    if spec.after:
        found["after"] = spec.after
    if not spec.strict:
        found["strict"] = False
    return found | ({"disable_any_whitespace": True} if spec.max_blanks == 0 else {})


async def derender_chat(call: Call, body: DerenderChat) -> ChatAnswer | Derendered:
    """Read generated tokens as messages, or a chunk of a stream of them as one of a message."""
    model, served = call.choose(body.model)
    request = body.chat_request or ChatRequest(messages=[])
    dialogue = Dialogue(Rendered([]), SamplingParams(), ToolPlan(), None, None)
    if body.chat_request is not None:
        _, served, dialogue = await chat.prepare(call, request)
    if body.stream:
        return await chat_chunk(body, model, served, dialogue)
    answer = body.answer()
    _check_tokens(served, answer.choices, "generate_response")
    params = replace(dialogue.params, n=len(answer.choices))
    tokenizer, prompt = served.renderer.tokenizer, dialogue.rendered.token_ids
    updates = await served.renderer.run(partial(_updates, tokenizer, prompt, params, answer))
    update, parsed, reasoning = await replace(dialogue, params=params).finish(_each(updates))
    choices = []
    for sequence, found, read in zip(update.output().outputs, parsed, answer.choices, strict=True):
        choices.append(chat.whole_choice(call, request, sequence, found))
        choices[-1].logprobs = chat_logprobs_read(tokenizer, read.logprobs)
    count = sum(len(choice.token_ids) for choice in answer.choices)
    usage = usage_read(body.prompt_tokens or 0, count, reasoning)
    now = int(time.time())
    return ChatAnswer(
        answer.request_id,
        now,
        model,
        served.fingerprint,
        choices,
        usage,
        answer.prompt_logprobs,
    )


async def derender_completion(
    call: Call, body: DerenderCompletion
) -> CompletionAnswer | Derendered:
    """Read generated tokens as texts, or a chunk of a stream of them as one of a text."""
    model, served = call.choose(body.model)
    request, tokenizer = body.completion_request, served.renderer.tokenizer
    params = SamplingParams()
    if request is not None:
        params = request.params(served.client.info.sampling_defaults)
    if body.stream:
        return await completion_chunk(body, model, served, params)
    body.check()
    found: list[CompletionChoice] = []
    for number, answer in enumerate(body.generate_responses):
        _check_tokens(served, answer.choices, f"generate_responses[{number}]")
        shared = replace(params, n=len(answer.choices))
        updates = await served.renderer.run(partial(_updates, tokenizer, [], shared, answer))
        pairs = zip(updates[-1].output().outputs, answer.choices, strict=True)
        found += [_text(tokenizer, len(found) + i, *pair) for i, pair in enumerate(pairs)]
        found[-1].prompt_logprobs = answer.prompt_logprobs
    count = sum(len(c.token_ids) for answer in body.generate_responses for c in answer.choices)
    name = body.generate_responses[0].request_id
    usage = usage_read(sum(body.prompt_tokens or ()), count)
    return CompletionAnswer(name, int(time.time()), model, served.fingerprint, found, usage)


def _text(
    tokenizer: Tokenizer, index: int, sequence: CompletionOutput, read: ChoiceRead
) -> CompletionChoice:
    logprobs = completion_logprobs_read(tokenizer, read.logprobs)
    reason = finish_reason(sequence.finish_reason)
    return CompletionChoice(index, sequence.text, logprobs, reason, sequence.stop_reason)


def _check_tokens(served: Served, choices: Sequence[ChoiceRead], place: str) -> None:
    vocab_size, limit = served.client.info.vocab_size, served.client.info.max_model_len
    for number, choice in enumerate(choices):
        field = f"{place}.choices[{number}].token_ids"
        if not 0 <= min(choice.token_ids) <= max(choice.token_ids) < vocab_size:
            raise ApiError("invalid_value", f"token ids lie between 0 and {vocab_size - 1}", field)
        if len(choice.token_ids) > limit:
            message = f"there are {len(choice.token_ids)} tokens, but a text has {limit} at most"
            raise ApiError("invalid_value", message, field)


def _updates(
    tokenizer: Tokenizer, prompt: list[int], params: SamplingParams, answer: AnswerRead
) -> list[RequestUpdate]:
    """Return the updates that an engine would have given for an answer, token by token."""
    given = [
        outputs(tokenizer, c.token_ids, c.finish_reason, c.stop_reason, str(i))
        for i, c in enumerate(answer.choices)
    ]
    steps = [[output for output in step if output] for step in zip_longest(*given)]
    return list(chain.from_iterable(replayed(tokenizer, prompt, params, steps)))


async def _each(updates: Sequence[RequestUpdate]) -> AsyncIterator[RequestUpdate]:
    for update in updates:
        yield update


ENDPOINTS = [
    Endpoint("POST", path, handler, summary, generates=True, answer=answer)
    for path, handler, summary, answer in (
        ("/v1/chat/completions/render", render_chat, "A conversation's tokens", RenderedRequest),
        ("/v1/completions/render", render_completion, "Prompts' tokens", list[RenderedRequest]),
        ("/v1/chat/completions/derender", derender_chat, "Tokens to messages", ChatAnswer),
        ("/v1/completions/derender", derender_completion, "Tokens to texts", CompletionAnswer),
    )
]
