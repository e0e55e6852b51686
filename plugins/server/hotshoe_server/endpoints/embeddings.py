"""`/v1/embeddings`: one vector of each text."""

from __future__ import annotations

import asyncio
import base64

from hotshoe.text.output_processor import RequestUpdate, floats
from hotshoe_server.call import Call
from hotshoe_server.extensions import Endpoint
from hotshoe_server.generation import check_length, generate, truncated
from hotshoe_server.merge import last_update
from hotshoe_server.renderer import Rendered
from hotshoe_server.schemas.embeddings import (
    Embedding,
    EmbeddingAnswer,
    EmbeddingRequest,
    EmbeddingUsage,
)


async def embed(call: Call, body: EmbeddingRequest) -> EmbeddingAnswer:
    """Make vectors of all texts; the first that cannot be made ends the request."""
    model, served = call.choose(body.model)
    params = body.params()
    prompts = [
        truncated(call, await served.renderer.prompt(text, body.add_special_tokens, content=True))
        for text in body.inputs()
    ]
    for prompt in prompts:  # before any of them is run
        check_length(call, prompt.token_ids, room=False)
    # A long list takes no more of the queue than a request for as many sequences may.
    turns = asyncio.Semaphore(served.config.max_sequences)

    async def one(number: int, prompt: Rendered) -> RequestUpdate:
        async with turns:
            request_id = f"embd-{body.request_id or call.id}-{number}"
            return await last_update(
                generate(call, model, prompt, params, request_id=request_id, priority=body.priority)
            )

    tasks = [asyncio.create_task(one(i, prompt)) for i, prompt in enumerate(prompts)]
    try:
        updates = await asyncio.gather(*tasks)
    finally:  # of those that one's failure, or a client that has gone, leaves running
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    in_base64 = body.encoding_format == "base64"
    data = [Embedding(i, _written(update, in_base64)) for i, update in enumerate(updates)]
    count = sum(len(prompt.token_ids) for prompt in prompts)
    return EmbeddingAnswer(data, model, EmbeddingUsage(count, count))


def _written(update: RequestUpdate, in_base64: bool) -> list[float] | str:
    assert update.pooled is not None, "a request for a vector ends with it or fails"
    return base64.b64encode(update.pooled).decode() if in_base64 else floats(update.pooled)


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/embeddings",
        embed,
        "Vectors of texts",
        generates=True,
        answer=EmbeddingAnswer,
    )
]
