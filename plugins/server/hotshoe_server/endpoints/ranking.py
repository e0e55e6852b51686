"""`/score` and `/rerank`: how close texts are, as a model of pairs says, or by their vectors."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hotshoe.models.late import max_sim
from hotshoe.models.similarity import similarity
from hotshoe.text.output_processor import floats
from hotshoe.types import PoolingParams
from hotshoe.types.late import LateInteraction
from hotshoe_server.call import Call
from hotshoe_server.extensions import Endpoint
from hotshoe_server.pooling import Made, pooled, render_pair, text_source, vectors
from hotshoe_server.renderer import Rendered
from hotshoe_server.schemas.embeddings import PooledUsage
from hotshoe_server.schemas.ranking import (
    PairRequest,
    RerankAnswer,
    RerankRequest,
    Score,
    ScoreAnswer,
    ScoreRequest,
    ranked,
)


async def score(call: Call, body: ScoreRequest) -> ScoreAnswer:
    """Compare texts, one with each of several or each with its counterpart."""
    left, right = body.pairs()
    scores, count = await _scores(call, body, body.names, left, right)
    data = [Score(i, one) for i, one in enumerate(scores)]
    name, usage = f"score-{call.id}", PooledUsage(count, count)
    return ScoreAnswer(name, int(time.time()), body.model or call.served.name, data, usage)


async def rerank(call: Call, body: RerankRequest) -> RerankAnswer:
    """Order documents by how close they are to a query."""
    texts = body.texts()
    scores, count = await _scores(call, body, ("query", "documents"), [body.query], texts)
    results = ranked(scores, texts, body)
    name, usage = f"rerank-{call.id}", PooledUsage(count, count)
    return RerankAnswer(name, body.model or call.served.name, results, usage)


async def _scores(
    call: Call, body: PairRequest, names: tuple[str, str], left: list[str], right: list[str]
) -> tuple[list[float], int]:
    """Return the score of each pair, and how many tokens were read; `names` are those of sides."""
    _, served = call.choose(body.model)
    pairs = list(zip(left * (len(right) // len(left)), right, strict=True))
    classifier = served.client.info.classifier
    if classifier is not None and classifier.scores_pairs:
        params = PoolingParams(task="classify", use_activation=body.use_activation)
        render = partial(render_pair, served, separated=classifier.separated)
        made, count = await vectors(
            call, body, ((names[1], partial(render, pair)) for pair in pairs), params
        )
        return [floats(one)[0] for one in made], count
    if (late := served.client.info.late) is not None:
        return await _late_scores(call, body, late, names, left, right)
    texts = [(name, text) for name, side in zip(names, (left, right), strict=True) for text in side]
    info, render = served.client.info, served.renderer
    lead = body.lead(info.instructions)
    found = ((name, text_source(render, body, text, lead)) for name, text in texts)
    normalize = True if info.instructions.similarity == "cosine" else None
    params = PoolingParams(normalize=normalize, use_activation=body.use_activation)
    made, count = await vectors(call, body, found, params)
    rows = [np.frombuffer(one, "<f4") for one in made]
    ones = rows[: len(left)] * (len(right) // len(left))
    sides = zip(ones, rows[len(left) :], strict=True)
    return [similarity(info.instructions.similarity, *side) for side in sides], count


async def _late_scores(
    call: Call,
    body: PairRequest,
    late: LateInteraction,
    names: tuple[str, str],
    left: list[str],
    right: list[str],
) -> tuple[list[float], int]:
    """Score pairs by the vectors of their tokens. Those of documents are not kept."""
    _, served = call.choose(body.model)
    params = PoolingParams(task="token_embed")

    async def marked(text: str, mark: Callable[[Sequence[int]], list[int]]) -> Rendered:
        rendered = await text_source(served.renderer, body, text)()
        return replace(rendered, token_ids=mark(rendered.token_ids))

    def sources(name: str, texts: list[str], mark: Callable[[Sequence[int]], list[int]]) -> Any:
        return ((name, partial(marked, text, mark)) for text in texts)

    def rows(made: Made) -> npt.NDArray[np.float32]:
        return np.frombuffer(made.vector, "<f4").reshape(made.num_tokens, -1)

    queries = await pooled(call, body, sources(names[0], left, late.of_query), params)

    def compared(number: int, made: Made) -> Made:
        query = rows(queries[number % len(queries)])
        score = max_sim(query, rows(made), made.token_ids, late)
        return Made(struct.pack("<f", score), made.token_ids)

    documents = sources(names[1], right, late.of_document)
    found = await pooled(call, body, documents, params, compared)
    count = sum(one.num_tokens for one in (*queries, *found))
    return [floats(one.vector)[0] for one in found], count


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
