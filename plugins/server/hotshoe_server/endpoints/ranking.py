"""`/score` and `/rerank`: how close texts are, by the vectors that the model makes of them."""

from __future__ import annotations

import time

import numpy as np

from hotshoe.types import PoolingParams
from hotshoe_server.call import Call
from hotshoe_server.endpoints.embeddings import vectors
from hotshoe_server.extensions import Endpoint
from hotshoe_server.schemas.ranking import (
    RerankAnswer,
    RerankRequest,
    Score,
    ScoreAnswer,
    ScoreRequest,
    Usage,
    ranked,
)

UNIT = PoolingParams(normalize=True)


async def score(call: Call, body: ScoreRequest) -> ScoreAnswer:
    """Compare texts, one with each of several or each with its counterpart."""
    left, right = body.pairs()
    scores, count = await _scores(call, body, body.names, left, right)
    data = [Score(i, one) for i, one in enumerate(scores)]
    name, usage = f"score-{call.id}", Usage(count, count)
    return ScoreAnswer(name, int(time.time()), body.model or call.served.name, data, usage)


async def rerank(call: Call, body: RerankRequest) -> RerankAnswer:
    """Order documents by how close they are to a query."""
    texts = body.texts()
    scores, count = await _scores(call, body, ("query", "documents"), [body.query], texts)
    results = ranked(scores, texts, body)
    name, usage = f"rerank-{call.id}", Usage(count, count)
    return RerankAnswer(name, body.model or call.served.name, results, usage)


async def _scores(
    call: Call,
    body: ScoreRequest | RerankRequest,
    names: tuple[str, str],
    left: list[str],
    right: list[str],
) -> tuple[list[float], int]:
    """Return the cosine of each pair, and how many tokens were read; `names` are those of sides."""
    texts = [(name, text) for name, side in zip(names, (left, right), strict=True) for text in side]
    made, count = await vectors(call, body, texts, UNIT)
    rows = [np.frombuffer(one, "<f4").astype(np.float64) for one in made]
    ones = rows[: len(left)] * (len(right) // len(left))
    pairs = zip(ones, rows[len(left) :], strict=True)
    return [float(np.clip(one @ other, -1, 1)) for one, other in pairs], count


ENDPOINTS = [
    *(
        Endpoint("POST", path, score, "How close texts are", generates=True, answer=ScoreAnswer)
        for path in ("/score", "/v1/score")
    ),
    *(
        Endpoint("POST", path, rerank, "Documents in order", generates=True, answer=RerankAnswer)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
]
