"""`/v1/embeddings`: one vector of each text."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

from hotshoe.text.output_processor import floats
from hotshoe.types import PoolingParams
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
    PooledRequest,
)


async def embed(call: Call, body: EmbeddingRequest) -> EmbeddingAnswer:
    """Make vectors of all texts."""
    params = body.params()
    made, count = await vectors(call, body, [("input", text) for text in body.inputs()], params)
    in_base64 = body.encoding_format == "base64"
    data = [Embedding(i, _written(vector, in_base64)) for i, vector in enumerate(made)]
    return EmbeddingAnswer(data, body.model or call.served.name, EmbeddingUsage(count, count))


async def vectors(
    call: Call,
    body: PooledRequest,
    texts: Sequence[tuple[str, str | list[int]]],
    params: PoolingParams,
) -> tuple[list[bytes], int]:
    """Make vectors of all texts; the first that cannot be made ends the request.

    Args:
        call, body: Of the request.
        texts: Each behind the field of the body that has it.
        params: Of every vector.

    Returns:
        Each vector as little-endian float32, and the number of tokens that were read.
    """
    model, served = call.choose(body.model)
    prompts = [
        truncated(call, await served.renderer.prompt(text, body.add_special_tokens, content=True))
        for _, text in texts
    ]
    for prompt, (field, _) in zip(prompts, texts, strict=True):  # before any of them is run
        check_length(call, prompt.token_ids, room=False, field=field)
    # A long list takes no more of the queue than a request for as many sequences may.
    turns = asyncio.Semaphore(served.config.max_sequences)

    async def one(number: int, prompt: Rendered) -> bytes:
        async with turns:
            request_id = f"embd-{body.request_id or call.id}-{number}"
            update = await last_update(
                generate(call, model, prompt, params, request_id=request_id, priority=body.priority)
            )
        assert update.pooled is not None, "a request for a vector ends with it or fails"
        return update.pooled

    tasks = [asyncio.create_task(one(i, prompt)) for i, prompt in enumerate(prompts)]
    try:
        made = await asyncio.gather(*tasks)
    finally:  # of those that one's failure, or a client that has gone, leaves running
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return made, sum(len(prompt.token_ids) for prompt in prompts)


def _written(vector: bytes, in_base64: bool) -> list[float] | str:
    return base64.b64encode(vector).decode() if in_base64 else floats(vector)


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
