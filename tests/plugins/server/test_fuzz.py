"""Bad input never breaks anything: every field of every route, then the same answer as before."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.plugins.server.conftest import RunningServer

from hotshoe_server.endpoints import ENDPOINTS, ollama
from hotshoe_server.openapi import describe
from hotshoe_server.route import body_type

EVERY = [*ENDPOINTS, *ollama.ENDPOINTS]
#: A request of each route that works.
GENERATED = {"request_id": "x", "choices": [{"token_ids": [50, 51]}]}
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "What is 2 + 3?"}]},
    "/v1/completions": {"prompt": "One day"},
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions/render": {"prompt": "One day"},
    "/v1/chat/completions/derender": {"generate_response": GENERATED},
    "/v1/completions/derender": {"generate_responses": [GENERATED]},
    "/v1/responses": {"input": "What is 2 + 3?"},
    "/v1/responses/input_tokens": {"input": "What is 2 + 3?"},
    **{p: {"input": "x"} for p in ("/v1/embeddings", "/pooling", "/classify", "/v1/classify")},
    **{path: {"text_1": "x", "text_2": "y"} for path in ("/score", "/v1/score")},
    **{f"{of}/rerank": {"query": "x", "documents": ["y"]} for of in ("", "/v1", "/v2")},
    "/v1/messages": {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "What is 2 + 3?"}]},
    "/invocations": {"prompt": "One day"},
    "/tokenize": {"prompt": "One day"},
    "/detokenize": {"tokens": [50, 51]},
    "/inference/v1/generate": {"token_ids": [50, 51]},
    "/v1/conversations": {},
    "/v1/conversations/{conversation_id}": {"metadata": {}},
    "/v1/conversations/{conversation_id}/items": {"items": [{"role": "user", "content": "x"}]},
    "/api/chat": {"model": "demo", "messages": [{"role": "user", "content": "What is 2 + 3?"}]},
    "/api/generate": {"model": "demo", "prompt": "What is 2 + 3?"},
    "/api/embed": {"model": "demo", "input": "x"},
    "/api/show": {"model": "demo"},
}
#: Ends of the routes that need another model than the demo.
OF_EMBEDDERS = ("/v1/embeddings", "/score", "/rerank", "/classify", "/pooling")
#: Posts that read no body.
BARE = {"/ping", "/v1/responses/{response_id}/cancel"}
#: What each field is set to, as JSON text.
VALUES = [
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "-0.0", "1e-320", "0.5"),
    *("0", "-1", str(2**31 - 1), str(2**31), str(2**63 - 1), str(2**63), str(2**64), "9" * 400),
    *("null", "true", '""', '"\\u0000"', '"\\ud800"', '"\\udfff\\ud800"', '"x\\u202ey"', '"%s%n"'),
    *("[]", "{}", "[[]]", "[null]", "[{}]", '{"":{}}', "[" * 150 + "]" * 150),
    f"[{','.join(['1'] * 20_000)}]",
    f"[{','.join(['-1'] * 20_000)}]",
    f'["{"a" * 20_000}"]',
    json.dumps({str(i): 1 for i in range(5_000)}),
    json.dumps(["x"] * 5_000),
]
ERROR = {"message", "type", "param", "code"}
MAX_TOKENS = dict.fromkeys(("/v1/responses", "/v1/responses/input_tokens"), "max_output_tokens")


def fields_of(path: str) -> list[str]:
    [endpoint] = [e for e in EVERY if e.path == path and e.method == "POST"]
    model = body_type(endpoint)
    return [field.alias or name for name, field in model.model_fields.items()]


def test_every_route_is_fuzzed() -> None:
    posts = {e.path for e in EVERY if e.method == "POST" and not e.admin} - BARE
    assert posts == set(GOOD)


def bounded(path: str) -> dict[str, Any]:
    """A request that is short whatever one field is set to."""
    short = not any(part in path for part in ("generate", "v1", "invocations"))
    limit = {} if short else {"seed": 7, "temperature": 0.0}
    others = ("/v1/embeddings", "/v1/messages", "/v1/conversations")
    if path.startswith(others) or path.endswith("/derender"):
        limit = {}
    elif path in ("/api/chat", "/api/generate"):
        limit = {"stream": False, "options": {"seed": 7, "temperature": 0.0, "num_predict": 4}}
    elif limit:
        limit[MAX_TOKENS.get(path, "max_tokens")] = 4
    return {**GOOD[path], **limit}


def bodies(path: str, step: int = 1) -> Iterator[bytes]:
    """Requests with every `step`-th of VALUES in each field, others in the next one."""
    first = random.randrange(step)
    for number, field in enumerate([*fields_of(path), "unknown"], first):
        others = {name: value for name, value in bounded(path).items() if name != field}
        start = json.dumps(others)[:-1]
        for value in VALUES[number % step :: step]:
            yield f"{start}, {json.dumps(field)}: {value}}}".encode()


def stable(answer: httpx.Response) -> Any:
    """What is the same in equal answers."""
    value = answer.json()
    if isinstance(value, list):
        [value] = value
    for name in ("id", "created", "created_at", "completed_at", "request_id", "output"):
        value.pop(name, None)
    return {name: found for name, found in value.items() if not name.endswith("_duration")}


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", GOOD)
def test_every_value_in_every_field(open_http, engine, path: str, step: int) -> None:
    """Over a scripted engine, in one process: nothing is a 5xx, nothing is left behind."""

    http = open_http(ollama=True)

    async def run() -> None:
        headers = {"content-type": "application/json"}
        for body in bodies(path, step):
            answer = await http.send("POST", path, content=body, headers=headers)
            assert answer.status_code < 500, (body[:300], answer.text[:1000])
            text = answer.text
            if answer.status_code != 200:
                error = answer.json()["error"]
                if path.startswith("/api/"):
                    assert isinstance(error, str)
                elif path.startswith("/v1/messages"):
                    assert error.keys() < ERROR
                else:
                    assert error.keys() == ERROR
                assert "Traceback" not in text and " at 0x" not in text
                assert len(text) < 4000

    engine.reply = "Hi"
    asyncio.run(run())
    assert http.state.in_flight == {}
    assert http.state.num_open == 0


@pytest.fixture(scope="module")
def short_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose longest answers are short, whatever a request asks for: 64 of them, even."""
    log = tmp_path_factory.mktemp("server") / "log"
    running = RunningServer(log, "demo", "--max-model-len", "160", "--ollama")
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in GOOD if not path.endswith(OF_EMBEDDERS)])
def test_a_real_server_goes_on_unharmed(short_server, path: str) -> None:
    with httpx.Client(base_url=short_server.url, timeout=60, verify=False) as client:
        before = stable(client.post(path, json=bounded(path)))
        for body in bodies(path):
            headers = {"content-type": "application/json"}
            answer = client.post(path, content=body, headers=headers)
            assert answer.status_code < 500, (body[:300], answer.text[:1000])
        assert stable(client.post(path, json=bounded(path))) == before
        load = client.get("/load").json()
    assert (load["num_running"], load["num_waiting"], load["kv_cache_usage"]) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_schemathesis(short_server) -> None:
    import schemathesis

    schema = schemathesis.openapi.from_dict(describe(ENDPOINTS))
    schema.config.update(base_url=short_server.url)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 10
    for operation in operations:

        @settings(
            max_examples=15,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            begin = time.monotonic()
            answer = case.call(timeout=60)  # between two parts of a stream
            assert answer.status_code < 500, answer.text
            assert time.monotonic() - begin < 120, (case.body, answer.text[-1000:])

        check()
