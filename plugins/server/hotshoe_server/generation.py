"""The one way from an endpoint to the engine: checks, deadline, tenant, observers, abort.

Leaving the stream of updates aborts the request, so that a client that has gone frees its blocks.
How requests end, finish reasons and usage, all endpoints word alike.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from hotshoe.engine.api import inputs
from hotshoe.engine.api.beams import search_beams
from hotshoe.errors import RequestError
from hotshoe.text.output_processor import RequestUpdate, SequenceUpdate
from hotshoe.types import FinishReason, PoolingParams, SamplingParams, TokensPrompt
from hotshoe_server.call import Call
from hotshoe_server.errors import ApiError, as_api_error
from hotshoe_server.extensions import RequestRecord
from hotshoe_server.renderer import Rendered
from hotshoe_server.schemas.answers import CompletionTokensDetails, PromptTokensDetails, Usage
from hotshoe_server.schemas.fields import Generation
from hotshoe_server.state import Served, ServerState

DEADLINE = "deadline"  # see `EngineClient.generate`
#: How errors begin whose cause is the grammar that the client sent; see `hotshoe.grammar`.
GRAMMAR = "grammar: "
#: Which field of each route's requests the prompt is made from.
PROMPT_FIELDS = {
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/v1/responses": "input",
    "/v1/messages": "messages",
    **dict.fromkeys(("/v1/embeddings", "/api/embed"), "input"),
    "/inference/v1/generate": "token_ids",
}
#: Entries of prompts, each of a hundred bytes or so, that an answer may hold for further choices.
MAX_REPEATED = 2**15
#: Of an answer that is built as a whole: about what the text of a token takes, about what an entry
#: with a log probability takes, and what all of them may take.
TEXT_BYTES, ENTRY_BYTES, MAX_ANSWER_BYTES = 8, 80, 2**28
_CUT_OFF = (FinishReason.ABORT, FinishReason.ERROR)


async def generate(
    call: Call,
    model: str,
    rendered: Rendered,
    params: SamplingParams | PoolingParams,
    *,
    request_id: str,
    stream: bool = False,
    priority: int = 0,
) -> AsyncIterator[RequestUpdate]:
    """Run one request and yield what it gains.

    Raises:
        ApiError: It cannot be run, failed, or ran into its deadline.
        RequestError: The engine refuses it.
        EngineDeadError: The engine has stopped.
    """
    server = call.server
    pools = isinstance(params, PoolingParams)
    check_length(call, rendered.token_ids, room=not pools)
    check_wishes(call, len(rendered.token_ids), priority)
    request_id = _unused(request_id, server)
    if (adapter := call.served.adapter(model)) is not None:
        params = _adapted(params, adapter)
    updates = _updates(call, rendered, params, request_id, priority)
    sampled = SamplingParams(max_tokens=1) if isinstance(params, PoolingParams) else params
    record = RequestRecord(
        request_id, call.path, model, call.headers, stream, sampled, call.arrival_s
    )
    record.served = call.served.name
    record.num_prompt_tokens = len(rendered.token_ids)
    server.in_flight[request_id] = record
    for observer in server.observers:
        observer.begin(record)
    try:
        async with server.held(call.served), aclosing(updates):  # type: ignore[type-var]
            async for update in updates:
                _note(call, record, update)
                yield update
    except (asyncio.CancelledError, GeneratorExit):
        record.error = None if record.finish_reasons else "client_gone"
        raise
    except Exception as error:
        found = as_api_error(error)
        record.error = found.code
        if isinstance(error, RequestError):
            raise _worded(call, error) from None
        raise
    finally:
        del server.in_flight[request_id]
        record.end_s = time.monotonic()
        for observer in server.observers:
            observer.end(record)


def _updates(
    call: Call,
    rendered: Rendered,
    params: SamplingParams | PoolingParams,
    request_id: str,
    priority: int,
) -> AsyncIterator[RequestUpdate]:
    """Begin to generate, or to search where the request asks for that."""
    client = call.served.client
    wishes = call.body_read.wishes()
    prompt = replace(rendered.prompt, cache_salt=wishes.cache_salt)
    ends = {"tenant": call.tenant, "timeout_s": call.server.config.request_timeout_s}
    search = wishes.beam_search
    if search is None or isinstance(params, PoolingParams):
        return client.generate(prompt, params, request_id, priority, **ends)
    if not isinstance(prompt, TokensPrompt):
        raise ApiError("invalid_value", "a beam search takes text or token ids", "prompt_embeds")
    if params.grammar is not None:
        message = "a beam search cannot keep calls of tools to a form; leave tool_choice out"
        raise ApiError("unsupported_parameter", message, "tool_choice")
    search = replace(search, max_tokens=params.max_tokens, adapter=params.adapter)
    return search_beams(client, prompt, search, request_id, priority, **ends)


def check_length(call: Call, token_ids: Sequence[int], room: bool = True, field: str = "") -> None:
    """Refuse a prompt without tokens, and one that leaves no room for any where one is wanted.

    It stands in `field` of the body; by default where all prompts of the path do.

    Raises:
        ApiError: It is empty or too long.
    """
    field = field or PROMPT_FIELDS.get(call.path.removesuffix("/render"))
    try:
        inputs.check_length(len(token_ids), call.served.client.config.max_model_len, room)
    except RequestError as error:
        code = "context_length_exceeded" if token_ids else "invalid_value"
        raise ApiError(code, str(error), field) from None


def check_wishes(call: Call, num_prompt_tokens: int, priority: int) -> None:
    """Refuse what cannot come: tokens beyond the room, a priority that none heeds, other spaces.

    Raises:
        ApiError: The request asks for it.
    """
    served, wishes = call.served, call.body_read.wishes()
    if priority and served.client.config.scheduling_policy != "priority":
        message = "priority has no effect here; the server needs --scheduling-policy priority"
        raise ApiError("unsupported_parameter", message, "priority")
    tokenizer = served.client.tokenizer if wishes.no_spaces else None
    if tokenizer is not None and tokenizer.spaces_special_tokens:
        name = "spaces_between_special_tokens"
        message = f"{name}=false is not supported with this model's tokenizer; leave it out"
        raise ApiError("unsupported_parameter", message, name)
    field, wanted = wishes.max_tokens_field, wishes.max_tokens
    if wanted is None or served.config.clip_max_tokens:
        return
    limit = served.client.config.max_model_len
    if num_prompt_tokens + wanted > limit:
        raise ApiError(
            "context_length_exceeded",
            f"{field} is {wanted}, but this model's maximum context length is {limit} tokens and "
            f"the prompt has {num_prompt_tokens}; ask for {limit - num_prompt_tokens} at most",
            field,
        )


def truncated(call: Call, rendered: Rendered) -> Rendered:
    """Keep as many tokens of a prompt as the request's `truncate_prompt_tokens` says.

    -1 keeps what leaves room for the tokens that are asked for. `truncation_side` says what goes:
    the beginning, unless it is "right".

    Raises:
        ApiError: That is more than the context has.
    """
    wishes, limit = call.body_read.wishes(), call.served.client.config.max_model_len
    count = wishes.prompt_tokens
    if count is None:
        return rendered
    if count > limit:
        message = f"truncate_prompt_tokens is {count}, but this model's maximum context length is "
        raise ApiError("invalid_value", f"{message}{limit} tokens", "truncate_prompt_tokens")
    if isinstance(call.body_read, Generation):
        limit -= max(1, wishes.max_tokens or 1)
    count = limit if count == -1 else count
    return rendered.cut(max(count, 1), end=wishes.keeps_end)


def _unused(request_id: str, server: ServerState) -> str:
    """Return an id that no other request has: clients choose them, and may choose one twice."""
    taken = request_id in server.in_flight
    return f"{request_id}-{secrets.token_hex(4)}" if taken else request_id


def check_count(served: Served, num_sequences: int) -> None:
    """Refuse a request for too many sequences.

    Raises:
        ApiError: The request asks for more than `max_sequences`.
    """
    limit = served.config.max_sequences
    if num_sequences > limit:
        raise ApiError(
            "invalid_value",
            f"this asks for {num_sequences} sequences, but one request may have {limit} "
            "(--max-sequences)",
            "n",
        )


def check_answer(
    served: Served,
    params: SamplingParams,
    num_prompt_tokens: Sequence[int],
    repeated: int = 0,
    stream: bool = False,
    fields: tuple[str, str] = ("max_tokens", "logprobs"),
) -> None:
    """Refuse an answer that would be too long, or would repeat what it says of prompts too often.

    Args:
        served: Whose context bounds what is generated.
        params: Of the request.
        num_prompt_tokens: Of each of its prompts.
        repeated: How many entries each choice has for a token of its prompt, beside those of
            `prompt_logprobs`.
        stream: What is generated is sent as it comes, so that it is never held as a whole.
        fields: Which ones of the request bound tokens and log probabilities.

    Raises:
        ApiError: It could have more than `MAX_ANSWER_BYTES`, or repeats more than `MAX_REPEATED`
            entries.
    """
    if params.prompt_logprobs is not None:
        repeated += 1 + params.prompt_logprobs
    count = (params.n - 1) * sum(num_prompt_tokens) * repeated
    if count > MAX_REPEATED:
        raise ApiError(
            "invalid_value",
            f"{params.n} choices would repeat {count} entries of the prompts, but an answer may "
            f"repeat {MAX_REPEATED}; ask for echo or prompt_logprobs with n=1",
            "n",
        )
    if stream:
        return
    each, more = TEXT_BYTES, len(params.logprob_token_ids)
    if params.logprobs is not None:
        each = ENTRY_BYTES * (1 + params.logprobs + more)
    limit = served.client.config.max_model_len
    tokens = (min(limit - prompt, params.max_tokens or limit) for prompt in num_prompt_tokens)
    num_bytes = params.n * sum(tokens) * each + sum(num_prompt_tokens) * repeated * ENTRY_BYTES
    if num_bytes > MAX_ANSWER_BYTES:
        raise ApiError(
            "invalid_value",
            f"this answer could have {num_bytes} bytes, but one that is not streamed may have "
            f"{MAX_ANSWER_BYTES}; ask for fewer tokens or log probabilities, or stream",
            fields[params.logprobs is not None],
        )


def _adapted(params: SamplingParams | PoolingParams, adapter: str) -> SamplingParams:
    if isinstance(params, PoolingParams):
        raise ApiError("model_not_found", "adapters make no vectors; ask the model", "model")
    return replace(params, adapter=adapter)


def _worded(call: Call, error: RequestError) -> Exception:
    """Return an error of the engine's with the name that the field has in the request."""
    if error.field == "adapter":
        return ApiError("model_not_found", str(error), "model")
    if error.field == "grammar":
        return ApiError("invalid_value", str(error), call.body_read.grammar_field)
    return call.body_read.renamed(error)


def _note(call: Call, record: RequestRecord, update: RequestUpdate) -> None:
    server, num_tokens = call.server, 0
    for sequence in update.sequences:
        num_tokens += (count := len(sequence.new_token_ids))
        if record.params.n > 1:
            record.lengths[sequence.index] = record.lengths.get(sequence.index, 0) + count
    record.num_generated_tokens += num_tokens
    record.timing = update.timing
    if update.finished:
        record.num_cached_tokens = update.num_cached_tokens
        record.finish_reasons = [s.finish_reason.value for s in update.sequences if s.finish_reason]
    if server.observers:
        now = time.monotonic()
        for observer in server.observers:
            observer.advance(record, num_tokens, now)
    for sequence in update.sequences:
        if sequence.finish_reason in _CUT_OFF:
            _raise_for(call, sequence)


def _raise_for(call: Call, sequence: SequenceUpdate) -> None:
    """Turn the error of a sequence into the request's.

    Raises:
        ApiError: Always, but for a sequence that was aborted on request.
    """
    if sequence.finish_reason is FinishReason.ERROR:
        if (sequence.error or "").startswith(GRAMMAR):
            raise ApiError("invalid_value", sequence.error, call.body_read.grammar_field)
        raise ApiError("generation_failed", f"generation failed: {sequence.error}")
    if sequence.error == DEADLINE:
        raise ApiError("deadline_exceeded")
    if call.server.draining:
        raise ApiError("shutting_down", retry_after_s=5)


def finish_reason(reason: FinishReason | None, called: bool = False) -> str:
    """Return OpenAI's word for an end; "abort" has none there, and stays."""
    if called and reason is FinishReason.STOP:
        return "tool_calls"
    return reason.value if reason is not None else "abort"


def usage_of(*updates: RequestUpdate, num_reasoning_tokens: int = 0) -> Usage:
    """Count the tokens of requests up to their last updates."""
    prompt = sum(update.num_prompt_tokens for update in updates)
    generated = sum(update.num_generated_tokens for update in updates)
    return Usage(
        prompt,
        generated,
        prompt + generated,
        PromptTokensDetails(sum(update.num_cached_tokens for update in updates)),
        CompletionTokensDetails(num_reasoning_tokens),
    )
