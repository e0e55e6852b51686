"""/openapi.json, from the same table that makes the routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic.json_schema import models_json_schema

from hotshoe import __version__
from hotshoe_server.call import Call
from hotshoe_server.extensions import Endpoint
from hotshoe_server.route import body_type
from hotshoe_server.schemas.answers import ErrorAnswer

_REF = "#/components/schemas/{name}"
_PYDANTIC_REF = "#/components/schemas/{model}"


def openapi_endpoint(endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint that describes the others."""
    described: dict[str, Any] = {}

    async def openapi(call: Call) -> dict[str, Any]:
        if not described:
            described.update(describe(endpoints))
        return described

    return Endpoint("GET", "/openapi.json", openapi, "This description")


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of some endpoints; admin verbs are left out."""
    listed = [endpoint for endpoint in endpoints if not endpoint.admin]
    bodies = [model for e in listed if (model := body_type(e)) is not None]
    answers = [*(e.answer for e in listed if e.answer is not None), ErrorAnswer]
    body_refs, definitions = models_json_schema(
        [(model, "validation") for model in bodies], ref_template=_PYDANTIC_REF
    )
    answer_refs, components = msgspec.json.schema_components(answers, ref_template=_REF)
    refs: dict[Any, Any] = {model: ref for (model, _), ref in body_refs.items()}
    refs |= dict(zip(answers, answer_refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in listed:
        paths.setdefault(_template(endpoint.path), {})[endpoint.method.lower()] = _operation(
            endpoint, refs
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hotshoe", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), **components},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _template(path: str) -> str:
    """Return a route's path as OpenAPI spells it, without the kinds of its parameters."""
    return path.replace(":path}", "}")


def _name(endpoint: Endpoint) -> str:
    """Return a name that is an identifier, as code is generated under it."""
    return re.sub(r"\W+", "_", f"{endpoint.method.lower()}{_template(endpoint.path)}").rstrip("_")


def _operation(endpoint: Endpoint, refs: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {} for kind in endpoint.other_types}
    if endpoint.answer is not None:
        content["application/json"] = {"schema": refs[endpoint.answer]}
    failed = {"application/json": {"schema": refs[ErrorAnswer]}}
    operation: dict[str, Any] = {
        "operationId": _name(endpoint),
        "summary": endpoint.summary,
        "responses": {
            "200": {"description": "the answer", "content": content or {"application/json": {}}},
            "4XX": {"description": "the request's fault", "content": failed},
            "5XX": {"description": "the server's fault", "content": failed},
        },
    }
    body = body_type(endpoint)
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": refs[body]}},
        }
    names = [part[1:-1] for part in _template(endpoint.path).split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return operation
