"""The description is that of the routes."""

import json

from hotshoe_server.endpoints import ENDPOINTS
from hotshoe_server.openapi import describe


def refs(value: object) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(refs(v) for v in value.values()))
    return set().union(*map(refs, value)) if isinstance(value, list) else set()


def test_every_route_but_the_admins_is_described(http) -> None:
    document = http.get("/openapi.json").json()
    described = {(m.upper(), path) for path, item in document["paths"].items() for m in item}
    routed = {(e.method, e.path) for e in ENDPOINTS if not e.admin} | {("GET", "/openapi.json")}
    assert described == {(method, path.replace(":path", "")) for method, path in routed}
    assert "/pause" not in document["paths"]


def test_every_reference_leads_somewhere() -> None:
    document = describe(ENDPOINTS)
    for ref in refs(document):
        value = document
        for part in ref.removeprefix("#/").split("/"):
            value = value[part]
    assert len(json.dumps(document)) > 10_000


def test_operations_have_names_of_their_own() -> None:
    operations = [o for item in describe(ENDPOINTS)["paths"].values() for o in item.values()]
    assert len({o["operationId"] for o in operations}) == len(operations)
    assert all(o["summary"] and o["operationId"].isidentifier() for o in operations)
