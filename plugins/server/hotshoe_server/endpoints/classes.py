"""`/classify`: the class of each text. `/pooling`: what the model makes of it, as numbers."""

from __future__ import annotations

import time

import numpy as np

from hotshoe.text.output_processor import floats
from hotshoe.types.classes import Classifier
from hotshoe_server.call import Call
from hotshoe_server.endpoints.embeddings import written
from hotshoe_server.extensions import Endpoint
from hotshoe_server.pooling import Made, pooled, sources, vectors
from hotshoe_server.schemas.classes import (
    ClassifyAnswer,
    ClassifyRequest,
    Found,
    Pooled,
    PoolingAnswer,
    PoolingRequest,
)
from hotshoe_server.schemas.embeddings import PooledUsage


async def classify(call: Call, body: ClassifyRequest) -> ClassifyAnswer:
    """Say of what class each text is."""
    _, served = call.choose(body.model)
    made, count = await vectors(call, body, sources(served, body), body.params())
    classifier = served.client.info.classifier
    assert classifier is not None, "requests for classes are refused without"
    data = []
    for index, vector in enumerate(made):
        probs = floats(vector)
        label = classifier.labels[probs.index(max(probs))]
        data.append(Found(index, label, probs, len(probs)))
    name, usage = f"classify-{call.id}", PooledUsage(count, count)
    return ClassifyAnswer(name, int(time.time()), body.model or served.name, data, usage)


async def pool(call: Call, body: PoolingRequest) -> PoolingAnswer:
    """Make a vector of each text, by the task that is asked for or that the model has."""
    _, served = call.choose(body.model)
    params = body.params(served.client.info.tasks)
    found = await pooled(call, body, sources(served, body), params)
    made, count = [one.vector for one in found], sum(one.num_tokens for one in found)
    if params.task.startswith("token") and body.encoding_format != "base64":
        steps = served.client.info.classifier if params.task == "token_classify" else None
        data = [Pooled(i, _rows(one, steps)) for i, one in enumerate(found)]
    else:
        data = [Pooled(i, written(vector, body.encoding_format)) for i, vector in enumerate(made)]
    name, usage = f"pool-{call.id}", PooledUsage(count, count)
    return PoolingAnswer(name, int(time.time()), body.model or served.name, data, usage)


def _rows(made: Made, classifier: Classifier | None) -> list[list[float]]:
    """Return the numbers of each token, or of each that has classes."""
    count = made.num_tokens
    if classifier is not None:
        count = classifier.count_classified(made.token_ids)
    rows: list[list[float]] = np.frombuffer(made.vector, "<f4").reshape(count, -1).tolist()
    return rows


ENDPOINTS = [
    *(
        Endpoint("POST", path, classify, "Classes of texts", generates=True, answer=ClassifyAnswer)
        for path in ("/classify", "/v1/classify")
    ),
    Endpoint("POST", "/pooling", pool, "Vectors or classes", generates=True, answer=PoolingAnswer),
]
