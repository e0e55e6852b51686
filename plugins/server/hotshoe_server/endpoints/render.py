"""Chat and completions in two halves around `/inference/v1/generate`, in vLLM's form.

Rendering turns a request into one for tokens, which any server of the model can run. Derendering
turns its answer into that of the request: text, reasoning and calls.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from hotshoe.text.output_processor import OutputProcessor, RequestUpdate
from hotshoe.text.repetition import BOUNDS
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import (
    CompletionOutput,
    FinishReason,
    GrammarSpec,
    SamplingParams,
    TokenOutput,
)
from hotshoe_server.call import Call
from hotshoe_server.conversation import Dialogue
from hotshoe_server.endpoints import chat, completions
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.finish import finish_reason
from hotshoe_server.generation import check_length, check_wishes
from hotshoe_server.logprobs import token_text
from hotshoe_server.renderer import Rendered
from hotshoe_server.schemas.answers import (
    ChatAnswer,
    ChatLogprobs,
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    CompletionTokensDetails,
    PromptTokensDetails,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.schemas.completions import CompletionRequest
from hotshoe_server.schemas.fields import Generation
from hotshoe_server.schemas.render import (
    AnswerRead,
    ChoiceRead,
    DerenderChat,
    DerenderCompletion,
    LogprobsRead,
    RenderedRequest,
    RivalRead,
)
from hotshoe_server.state import Served
from hotshoe_server.tools import ToolPlan

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


async def derender_chat(call: Call, body: DerenderChat) -> ChatAnswer:
    """Read generated tokens as messages."""
    body.check()
    model, served = call.choose(body.model)
    request, answer = body.chat_request or ChatRequest(messages=[]), body.generate_response
    dialogue = Dialogue(Rendered([]), SamplingParams(), ToolPlan(), None, None)
    if body.chat_request is not None:
        _, served, dialogue = await chat.prepare(call, request)
    _check_tokens(served, answer.choices, "generate_response")
    params = replace(dialogue.params, n=len(answer.choices))
    tokenizer, prompt = served.renderer.tokenizer, dialogue.rendered.token_ids
    updates = await served.renderer.run(lambda: _replayed(tokenizer, answer, prompt, params))
    update, parsed, reasoning = await replace(dialogue, params=params).finish(_each(updates))
    choices = []
    for sequence, found, read in zip(update.output().outputs, parsed, answer.choices, strict=True):
        choices.append(chat.whole_choice(call, request, sequence, found))
        choices[-1].logprobs = _chat_logprobs(tokenizer, read.logprobs)
    count = sum(len(choice.token_ids) for choice in answer.choices)
    usage = _usage(body.prompt_tokens, count, reasoning)
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


async def derender_completion(call: Call, body: DerenderCompletion) -> CompletionAnswer:
    """Read generated tokens as texts."""
    body.check()
    model, served = call.choose(body.model)
    request, tokenizer = body.completion_request, served.renderer.tokenizer
    params = SamplingParams()
    if request is not None:
        params = request.params(served.client.info.sampling_defaults)
    found: list[CompletionChoice] = []
    for number, answer in enumerate(body.generate_responses):
        _check_tokens(served, answer.choices, f"generate_responses[{number}]")
        shared = replace(params, n=len(answer.choices))
        updates = await served.renderer.run(partial(_replayed, tokenizer, answer, [], shared))
        pairs = zip(updates[-1].output().outputs, answer.choices, strict=True)
        found += [_text(tokenizer, len(found) + i, *pair) for i, pair in enumerate(pairs)]
        found[-1].prompt_logprobs = answer.prompt_logprobs
    count = sum(len(c.token_ids) for answer in body.generate_responses for c in answer.choices)
    name = body.generate_responses[0].request_id
    usage = _usage(sum(body.prompt_tokens or ()), count)
    return CompletionAnswer(name, int(time.time()), model, served.fingerprint, found, usage)


def _text(
    tokenizer: Tokenizer, index: int, sequence: CompletionOutput, read: ChoiceRead
) -> CompletionChoice:
    logprobs = _completion_logprobs(tokenizer, read.logprobs)
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


def _replayed(
    tokenizer: Tokenizer, answer: AnswerRead, prompt: list[int], params: SamplingParams
) -> list[RequestUpdate]:
    """Return the updates that an engine would have given for an answer, token by token."""
    processor, names = OutputProcessor(tokenizer), [str(i) for i in range(params.n)]
    processor.add("", None, prompt, replace(params, logprobs=None), names)
    given = [list(_outputs(tokenizer, *pair)) for pair in zip(names, answer.choices, strict=True)]
    found: list[RequestUpdate] = []
    for step in zip_longest(*given):
        found += processor.process([output for output in step if output is not None])[0]
    return found


def _outputs(tokenizer: Tokenizer, name: str, choice: ChoiceRead) -> Iterator[TokenOutput]:
    *tokens, last = choice.token_ids
    for token in tokens:
        yield TokenOutput(name, [token])
    reason = FinishReason(choice.finish_reason)
    if reason is not FinishReason.STOP:
        yield TokenOutput(name, [last], finish_reason=reason)
    elif last == choice.stop_reason or last in tokenizer.special_token_ids:
        stop = last if last == choice.stop_reason else None
        yield TokenOutput(name, [last], finish_reason=reason, stop_token_id=stop)
    else:  # by a stop string, or with its grammar: the last token is part of the text
        yield TokenOutput(name, [last])
        yield TokenOutput(name, [], finish_reason=reason)


async def _each(updates: Sequence[RequestUpdate]) -> AsyncIterator[RequestUpdate]:
    for update in updates:
        yield update


def _usage(prompt: int, generated: int, reasoning: int = 0) -> Usage:
    details = PromptTokensDetails(0), CompletionTokensDetails(reasoning)
    return Usage(prompt, generated, prompt + generated, *details)


def _named(tokenizer: Tokenizer, read: RivalRead) -> tuple[str, float, list[int]]:
    """Return a token's text, value and bytes; one that is named by its id has none yet."""
    number = read.token.removeprefix("token_id:")
    is_id = number != read.token and number.isascii() and number.isdecimal() and len(number) < 10
    piece = tokenizer.pieces[int(number)] if is_id else b""
    if not piece:  # it is a text, or of no token that is known
        return read.token, read.logprob, read.bytes or list(read.token.encode())
    return token_text(tokenizer, int(number)), read.logprob, list(piece)


def _chat_logprobs(tokenizer: Tokenizer, read: LogprobsRead | None) -> ChatLogprobs | None:
    if read is None or read.content is None:
        return None
    content = [
        TokenLogprob(
            *_named(tokenizer, entry),
            [TopLogprob(*_named(tokenizer, rival)) for rival in entry.top_logprobs],
        )
        for entry in read.content
    ]
    return ChatLogprobs(content)


def _completion_logprobs(
    tokenizer: Tokenizer, read: LogprobsRead | None
) -> CompletionLogprobs | None:
    written = _chat_logprobs(tokenizer, read)
    if written is None:
        return None
    found, offset = CompletionLogprobs([], [], [], []), 0
    for entry in written.content:
        top: Mapping[str, float] = {rival.token: rival.logprob for rival in entry.top_logprobs}
        found.tokens.append(entry.token)
        found.token_logprobs.append(entry.logprob)
        found.top_logprobs.append({entry.token: entry.logprob, **top})
        found.text_offset.append(offset)
        offset += len(entry.token)
    return found


ENDPOINTS = [
    Endpoint("POST", path, handler, summary, generates=True, answer=answer)
    for path, handler, summary, answer in (
        ("/v1/chat/completions/render", render_chat, "A conversation's tokens", RenderedRequest),
        ("/v1/completions/render", render_completion, "Prompts' tokens", list[RenderedRequest]),
        ("/v1/chat/completions/derender", derender_chat, "Tokens to messages", ChatAnswer),
        ("/v1/completions/derender", derender_completion, "Tokens to texts", CompletionAnswer),
    )
]
