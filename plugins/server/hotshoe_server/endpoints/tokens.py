"""`/tokenize`, `/detokenize`, and `/inference/v1/generate`: tokens in, tokens out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from starlette.responses import Response

from hotshoe.text.output_processor import RequestUpdate
from hotshoe.types import CompletionOutput, TokenLogprobs
from hotshoe_server.call import Call
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.forms import bounded_grammar
from hotshoe_server.generation import check_answer, check_count, finish_reason, generate, usage_of
from hotshoe_server.logprobs import chat_logprobs, prompt_logprobs, token_text
from hotshoe_server.merge import last_update
from hotshoe_server.renderer import Rendered
from hotshoe_server.schemas.answers import ChatLogprobs
from hotshoe_server.schemas.chat import Conversation
from hotshoe_server.schemas.fields import StreamOptions
from hotshoe_server.schemas.tokens import (
    DetokenizeAnswer,
    DetokenizeRequest,
    GenerateAnswer,
    GenerateChoice,
    GenerateRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from hotshoe_server.sse import DONE, event, open_stream


async def tokenize(call: Call, body: TokenizeRequest) -> TokenizeAnswer:
    """Return the token ids of a prompt or a conversation, as generating would use them."""
    _, served = call.choose(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("invalid_value", "give either prompt or messages", "prompt")
    if body.prompt is not None:
        rendered = await served.renderer.prompt(body.prompt, body.add_special_tokens is not False)
    else:
        names = Conversation.model_fields.keys() & TokenizeRequest.model_fields.keys()
        conversation = Conversation.model_construct(**{name: getattr(body, name) for name in names})
        rendered = await served.renderer.chat(
            conversation.template_messages(),
            [tool.model_dump(exclude_none=True) for tool in body.tools or ()] or None,
            conversation.template_variables(),
            bool(body.add_special_tokens),
        )
    ids = rendered.token_ids
    answer = TokenizeAnswer(len(ids), served.client.info.max_model_len, ids)
    if body.return_token_strs:
        tokenizer = served.renderer.tokenizer
        answer.token_strs = await served.renderer.run(
            lambda: [token_text(tokenizer, token_id) for token_id in ids]
        )
    return answer


async def detokenize(call: Call, body: DetokenizeRequest) -> DetokenizeAnswer:
    """Return the text of token ids."""
    call.choose(body.model)
    vocab_size = call.served.client.info.vocab_size
    if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) < vocab_size:
        raise ApiError("invalid_value", f"token ids lie between 0 and {vocab_size - 1}", "tokens")
    text = await call.served.renderer.decode(body.tokens, body.skip_special_tokens)
    return DetokenizeAnswer(text)


async def generate_tokens(call: Call, body: GenerateRequest) -> Response | GenerateAnswer:
    """Continue token ids with token ids."""
    call.body_read = body = body.joined()
    model, served = call.choose(body.model)
    grammar = bounded_grammar(served, body.structured_outputs)
    defaults = served.client.info.sampling_defaults
    params = body.params(defaults, **({} if grammar is None else {"grammar": grammar}))
    check_count(served, params.n)
    prompt = Rendered(body.checked_token_ids(served.client.info.vocab_size))
    check_answer(served, params, [len(prompt.token_ids)], stream=bool(body.stream))
    request_id = body.request_id or f"gen-{call.id}"
    updates = generate(
        call,
        model,
        prompt,
        params,
        request_id=request_id,
        stream=bool(body.stream),
        priority=body.priority,
    )
    if body.stream:
        return await open_stream(_events(body, request_id, updates))
    last = await last_update(updates)
    output = last.output()
    choices = [_whole(body, sequence) for sequence in output.outputs]
    answer = GenerateAnswer(request_id, choices, usage_of(last))
    if output.prompt_logprobs is not None:
        answer.prompt_logprobs = prompt_logprobs(None, output.prompt_logprobs)
    return answer


def _whole(body: GenerateRequest, sequence: CompletionOutput) -> GenerateChoice:
    return GenerateChoice(
        sequence.index,
        sequence.token_ids,
        finish_reason(sequence.finish_reason),
        sequence.stop_reason,
        sequence.text if body.detokenize else None,
        _logprobs(sequence.token_ids, sequence.logprobs),
    )


async def _events(
    body: GenerateRequest, id: str, updates: AsyncIterator[RequestUpdate]
) -> AsyncIterator[bytes]:
    options = body.stream_options or StreamOptions()
    ended: set[int] = set()
    update: RequestUpdate | None = None
    first = body.prompt_logprobs is not None
    async with aclosing(updates):  # type: ignore[type-var]
        async for update in updates:
            choices = []
            for sequence in update.sequences:
                if sequence.index in ended:
                    continue
                reason = sequence.finish_reason
                if reason is not None:
                    ended.add(sequence.index)
                choices.append(
                    GenerateChoice(
                        sequence.index,
                        sequence.new_token_ids,
                        None if reason is None else finish_reason(reason),
                        sequence.stop_reason,
                        sequence.new_text if body.detokenize else None,
                        _logprobs(sequence.new_token_ids, sequence.new_logprobs),
                    )
                )
            answer = GenerateAnswer(id, choices)
            if options.continuous_usage_stats:
                answer.usage = usage_of(update)
            if first:
                answer.prompt_logprobs = prompt_logprobs(
                    None, update.output().prompt_logprobs or []
                )
            first = False
            yield event(answer)
    assert update is not None
    if options.include_usage:
        yield event(GenerateAnswer(id, [], usage_of(update)))
    yield DONE


def _logprobs(
    token_ids: Sequence[int], positions: Sequence[TokenLogprobs] | None
) -> ChatLogprobs | None:
    return None if positions is None else chat_logprobs(None, token_ids, positions)


_STREAM = ("text/event-stream",)
ENDPOINTS = [
    Endpoint(
        "POST", "/tokenize", tokenize, "Text to tokens", generates=True, answer=TokenizeAnswer
    ),
    Endpoint(
        "POST", "/detokenize", detokenize, "Tokens to text", generates=True, answer=DetokenizeAnswer
    ),
    Endpoint(
        "POST",
        "/inference/v1/generate",
        generate_tokens,
        "Continue tokens with tokens",
        generates=True,
        answer=GenerateAnswer,
        other_types=_STREAM,
    ),
]
