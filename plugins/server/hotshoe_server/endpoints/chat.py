"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from starlette.responses import Response

from hotshoe.text.response import ParsedResponse
from hotshoe.types import CompletionOutput
from hotshoe_server.call import Call
from hotshoe_server.chat_stream import ChatStream, new_call_id
from hotshoe_server.conversation import NO_TOOLS, Dialogue, open_dialogue, text_form
from hotshoe_server.extensions import Endpoint
from hotshoe_server.forms import limit_thinking
from hotshoe_server.generation import (
    check_answer,
    check_count,
    finish_reason,
    generate,
    truncated,
    usage_of,
)
from hotshoe_server.logprobs import chat_logprobs, prompt_logprobs
from hotshoe_server.schemas.answers import (
    ChatAnswer,
    ChatChoice,
    FunctionAnswer,
    MessageAnswer,
    ToolCallAnswer,
)
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.sse import open_stream
from hotshoe_server.state import Served
from hotshoe_server.tools import plan_tools


async def prepare(call: Call, body: ChatRequest) -> tuple[str, Served, Dialogue]:
    """Return the name to answer under, the model that answers, and what it is asked."""
    model, served = call.choose(body.model)
    defaults = served.client.info.sampling_defaults
    make_params = partial(body.sampling_params, defaults, **body.more_params())
    body.echoed()  # mistakes are found before the prompt is rendered
    make_params()
    tools = NO_TOOLS
    if not (body.tools is None and body.tool_choice is None):
        tools = plan_tools(served, body.tools, body.tool_choice, body.parallel_tool_calls)
    dialogue = await open_dialogue(
        served,
        body.template_messages(),
        body.template_variables(),
        tools,
        make_params,
        text_form(body.response_format, body.structured_outputs),
        body.add_special_tokens,
    )
    if body.thinking_token_budget is not None:
        dialogue = limit_thinking(served, dialogue, body.thinking_token_budget)
    return model, served, replace(dialogue, rendered=truncated(call, dialogue.rendered))


async def chat(call: Call, body: ChatRequest) -> Response | ChatAnswer:
    """Answer a conversation."""
    model, served, dialogue = await prepare(call, body)
    check_count(served, dialogue.params.n)
    lengths = [len(dialogue.rendered.token_ids)]
    check_answer(served, dialogue.params, lengths, stream=bool(body.stream))
    request_id = f"chatcmpl-{call.id}"
    updates = generate(
        call,
        model,
        dialogue.rendered,
        dialogue.params,
        request_id=request_id,
        stream=bool(body.stream),
        priority=body.priority,
    )
    if body.stream:
        return await open_stream(
            ChatStream(served, body, dialogue, request_id, model).events(updates)
        )
    update, parsed, num_reasoning_tokens = await dialogue.finish(updates)
    output = update.output()
    answer = ChatAnswer(
        request_id,
        int(time.time()),
        model,
        served.fingerprint,
        [],
        usage_of(update, num_reasoning_tokens=num_reasoning_tokens),
    )

    def write() -> None:
        pairs = zip(output.outputs, parsed, strict=True)
        answer.choices = [whole_choice(call, body, *pair) for pair in pairs]
        if output.prompt_logprobs is not None:
            tokenizer = served.client.tokenizer
            answer.prompt_logprobs = prompt_logprobs(tokenizer, output.prompt_logprobs)

    long = body.logprobs or output.prompt_logprobs is not None
    await served.renderer.run(write) if long else write()  # nobody waits for long work
    if body.return_token_ids:
        answer.prompt_token_ids = dialogue.rendered.token_ids
    return answer


def whole_choice(
    call: Call, body: ChatRequest, sequence: CompletionOutput, parsed: ParsedResponse
) -> ChatChoice:
    """Return one sequence as a message."""
    logprobs = None
    if body.logprobs and sequence.logprobs is not None:
        tokenizer = call.served.renderer.tokenizer
        logprobs = chat_logprobs(
            tokenizer, sequence.token_ids, sequence.logprobs, body.return_tokens_as_token_ids
        )
    return ChatChoice(
        sequence.index,
        _message(
            parsed,
            body.echoed(),
            call.served.config.reasoning_names if body.include_reasoning else (),
        ),
        logprobs,
        finish_reason(sequence.finish_reason, bool(parsed.calls)),
        sequence.stop_reason,
        sequence.token_ids if body.return_token_ids else None,
    )


def _message(parsed: ParsedResponse, echoed: str, reasoning_names: Sequence[str]) -> MessageAnswer:
    content = parsed.content.strip() and parsed.content if parsed.calls else parsed.content
    message = MessageAnswer(echoed + content or (None if parsed.calls else ""), None)
    for name in reasoning_names if parsed.reasoning else ():
        setattr(message, name, parsed.reasoning)
    if parsed.calls:
        message.tool_calls = [
            ToolCallAnswer(c.id or new_call_id(), FunctionAnswer(c.name, c.arguments))
            for c in parsed.calls
        ]
    return message


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat,
        "Answer a conversation",
        generates=True,
        answer=ChatAnswer,
        other_types=("text/event-stream",),
    )
]
