"""`/v1/embeddings`: one vector of each text."""

from __future__ import annotations

import base64

from hotshoe.text.output_processor import floats
from hotshoe_server.call import Call
from hotshoe_server.extensions import Endpoint
from hotshoe_server.pooling import sources, vectors
from hotshoe_server.schemas.embeddings import (
    Embedding,
    EmbeddingAnswer,
    EmbeddingRequest,
    PooledUsage,
)


async def embed(call: Call, body: EmbeddingRequest) -> EmbeddingAnswer:
    """Make vectors of all texts, or of a conversation."""
    _, served = call.choose(body.model)
    made, count = await vectors(call, body, sources(served, body), body.params())
    data = [Embedding(i, written(v, body.encoding_format)) for i, v in enumerate(made)]
    return EmbeddingAnswer(data, body.model or call.served.name, PooledUsage(count, count))


def written(vector: bytes, encoding: str | None) -> list[float] | str:
    """Return a vector of little-endian float32 as numbers, or as base64 where that is wanted."""
    return base64.b64encode(vector).decode() if encoding == "base64" else floats(vector)


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
