"""Middleware that the operator names: each form, order, faults."""

import sys
from types import ModuleType

import pytest

from hotshoe.errors import ConfigError
from hotshoe_server.middleware import operators_parts


class Adding:
    """Adds a header to every answer."""

    def __init__(self, app) -> None:
        self._app = app

    async def __call__(self, scope, receive, send) -> None:
        async def sending(message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-seen", b"class")]
            await send(message)

        await self._app(scope, receive, sending)


async def dispatch(request, call_next):
    """Adds one, too."""
    answer = await call_next(request)
    answer.headers.append("x-seen", "function")
    return answer


@pytest.fixture
def operators_module(monkeypatch) -> ModuleType:
    module = ModuleType("operators_code")
    module.Adding, module.dispatch, module.number = Adding, dispatch, 3
    monkeypatch.setitem(sys.modules, "operators_code", module)
    return module


def test_each_form_is_taken_the_first_outermost(open_http, operators_module) -> None:
    parts = operators_parts(["operators_code:Adding", "operators_code:dispatch"])
    http = open_http(parts=list(parts.values()))
    for path in ("/live", "/v1/models"):
        answer = http.get(path)
        assert answer.status_code == 200
        assert answer.headers.get_list("x-seen") == ["function", "class"]
    [told] = http.events("/v1/completions", prompt="x", max_tokens=1)[:1]
    assert told["object"] == "text_completion"


def test_it_sees_only_who_has_a_key(open_http, operators_module) -> None:
    parts = operators_parts(["operators_code:Adding"])
    http = open_http(parts=list(parts.values()), api_key=["a-key-for-tests"])
    answer = http.get("/v1/models")
    assert (answer.status_code, "x-seen" in answer.headers) == (401, False)


@pytest.mark.parametrize(
    "name", ["operators_code", "operators_code:none", "no_such_module:x", "operators_code:number"]
)
def test_what_cannot_be_used_is_refused(name: str, operators_module) -> None:
    with pytest.raises(ConfigError, match=f"--middleware {name}"):
        operators_parts([name])


def test_a_module_that_ends_the_process_is_refused(tmp_path, monkeypatch) -> None:
    (tmp_path / "leaving_code.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="SystemExit"):
        operators_parts(["leaving_code:x"])


def test_none_is_none() -> None:
    assert operators_parts([]) == {}
