"""Tools of type `mcp` in `/v1/responses`, against a server of tools on loopback."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from hotshoe_server.tool_servers import Limits, ToolResult, ToolServerError, ToolSession

PATH = "/v1/responses"
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def call_of(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Tools:
    """A server of tools, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.tokens: list[str | None] = []
        server = MCPServer("tools")

        @server.tool()
        def get_weather(city: str) -> str:
            """Tell the weather of a city."""
            self.asked.append(city)
            return f"sunny in {city}"

        @server.tool()
        def fail() -> str:
            """Fail."""
            raise ValueError

        @server.tool()
        async def sleep() -> str:
            """Take long."""
            import anyio

            await anyio.sleep(30)
            return "late"

        @server.tool()
        def much() -> str:
            """Say much."""
            return "x" * 300_000

        @server.tool()
        def picture() -> list[Any]:
            """Show something."""
            from mcp_types import ImageContent, TextContent

            text = TextContent(type="text", text="look")
            return [text, ImageContent(type="image", data="", mime_type="image/png")]

        inner = server.streamable_http_app()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                headers = dict(scope["headers"])
                self.tokens.append(headers.get(b"authorization", b"").decode() or None)
            await inner(scope, receive, send)

        self.app = app


class Running:
    """An application that is served in a thread."""

    def __init__(self, app: Any, lifespan: str = "on") -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        config = uvicorn.Config(app, lifespan=lifespan, log_level="error", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Tools, int]]:
    tools = Tools()
    running = Running(tools.app)
    yield tools, running.port
    running.stop()


@pytest.fixture
def tools(served) -> Tools:
    served[0].asked, served[0].tokens = [], []
    return served[0]


@pytest.fixture
def http(open_http, served):
    return open_http(tool_server=[f"local=127.0.0.1:{served[1]}"], tool_timeout_s=20.0)


def says(engine, *replies: str) -> None:
    """Let the engine answer its requests so, one after another."""
    left, plain = iter(replies), type(engine).generate

    def generate(*arguments: Any, **options: Any) -> Any:
        engine.reply = next(left)
        return plain(engine, *arguments, **options)

    engine.generate = generate


def mcp(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "local", "allowed_tools": list(names), **more}


def test_a_call_is_made_and_the_response_goes_on(http, engine, tools, tokenizer) -> None:
    says(engine, f"Let me look.\n{WEATHER}", "It is sunny.")
    answer = http.post(PATH, input="Weather?", tools=[mcp("get_weather")]).json()
    assert answer["status"] == "completed"
    listed, said, call, message = answer["output"]
    assert (listed["type"], listed["server_label"]) == ("mcp_list_tools", "local")
    [told] = listed["tools"]
    assert (told["name"], told["description"]) == ("get_weather", "Tell the weather of a city.")
    assert told["input_schema"]["required"] == ["city"]
    assert said["content"][0]["text"].strip() == "Let me look."
    assert (call["type"], call["status"], call["output"]) == (
        *("mcp_call", "completed", "sunny in Paris"),
    )
    assert (call["server_label"], call["error"]) == ("local", None)
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    assert message["content"][0]["text"] == "It is sunny."
    assert tools.asked == ["Paris"]
    first, second = engine.requests
    prompt = tokenizer.decode(second.prompt.token_ids, False)
    assert "sunny in Paris" in prompt and "Let me look." in prompt
    usage = answer["usage"]
    assert usage["input_tokens"] == len(first.prompt.token_ids) + len(second.prompt.token_ids)
    # What was said is part of the conversation.
    says(engine, "Indeed.")
    later = http.post(PATH, input="Sure?", previous_response_id=answer["id"])
    assert later.json()["output"][0]["content"][0]["text"] == "Indeed."
    prompt = tokenizer.decode(engine.requests[-1].prompt.token_ids, False)
    assert prompt.count("sunny in Paris") == 1
    path = f"{PATH}/{answer['id']}/input_items"
    assert [item["type"] for item in http.get(path).json()["data"]] == ["message"]
    # A client may also send it all back.
    says(engine, "Yes.")
    again = http.post(PATH, input=[*answer["output"], {"role": "user", "content": "Sure?"}])
    assert again.status_code == 200, again.text
    assert tokenizer.decode(engine.requests[-1].prompt.token_ids, False).count("sunny in P") == 1


def test_a_streams_events_add_up_to_the_answer(http, engine, tools) -> None:
    says(engine, WEATHER, "It is sunny.")
    events = http.events(PATH, input="Weather?", tools=[mcp("get_weather", authorization="no-id")])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"].removeprefix("response.") for event in events]
    assert names[:6] == [
        *("created", "in_progress", "output_item.added", "mcp_list_tools.in_progress"),
        *("mcp_list_tools.completed", "output_item.done"),
    ]
    at = names.index("mcp_call.in_progress")
    assert names[at - 1] == "output_item.added"
    done = names.index("mcp_call_arguments.done")
    assert set(names[at + 1 : done]) == {"mcp_call_arguments.delta"}
    assert names[done + 1 : done + 3] == ["mcp_call.completed", "output_item.done"]
    assert names[-1] == "completed"
    final = events[-1]["response"]
    finished = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert finished == final["output"]
    assert "no-id" not in json.dumps(events)
    assert set(tools.tokens) == {"Bearer no-id"}


def test_calls_that_fail_are_told_to_the_model(http, engine, tools, tokenizer) -> None:
    both = call_of("fail") + "\n" + call_of("get_weather", '{"town": 3}')
    says(engine, both, "Sorry.")
    answer = http.post(PATH, input="x", tools=[mcp("fail", "get_weather")]).json()
    _, failed, wrong, message = answer["output"]
    assert (failed["status"], failed["output"]) == ("failed", None)
    assert "fail" in failed["error"]
    assert wrong["status"] == "failed" and "city" in wrong["error"]
    assert message["content"][0]["text"] == "Sorry."
    assert failed["error"] in tokenizer.decode(engine.requests[1].prompt.token_ids, False)


def test_answers_are_bounded_in_bytes(open_http, engine, served) -> None:
    http = open_http(tool_server=[f"local=127.0.0.1:{served[1]}"], tool_answer_bytes=100_000)
    says(engine, call_of("much"), WEATHER, "Well.")
    answer = http.post(PATH, input="x", tools=[mcp("much", "get_weather")]).json()
    assert answer["status"] == "completed", answer
    _, much, weather, _ = answer["output"]
    assert much["status"] == "failed" and "100000" in much["error"]
    assert weather["output"] == "sunny in Paris"  # over a new connection


def test_answers_are_bounded_in_time(served) -> None:
    async def ask() -> None:
        session = ToolSession(f"http://127.0.0.1:{served[1]}/mcp", None, Limits(60.0, 2**20))
        try:
            await session.open()
            session._limits = Limits(0.1, 2**20)
            with pytest.raises(ToolServerError, match=r"did not answer within 0\.1 s"):
                await session.call("sleep", {})
            session._limits = Limits(60.0, 2**20)
            found = await session.call("get_weather", {"city": "Oslo"})
            assert found == ToolResult("sunny in Oslo")
        finally:
            await session.close()

    asyncio.run(ask())


def test_what_is_no_text_is_left_out(http, engine) -> None:
    says(engine, call_of("picture"), "Nice.")
    answer = http.post(PATH, input="x", tools=[mcp("picture")]).json()
    assert answer["output"][1]["output"] == "look\n[image left out]"


def test_calls_are_bounded_in_number(http, engine, tools) -> None:
    says(engine, f"{WEATHER}\n{WEATHER}\n{WEATHER}", WEATHER)
    asked = {"tools": [mcp("get_weather")], "max_tool_calls": 2}
    answer = http.post(PATH, input="x", **asked).json()
    assert answer["incomplete_details"] == {"reason": "max_tool_calls"}
    calls = answer["output"][1:]
    assert [call["status"] for call in calls] == [*("completed", "completed", "failed", "failed")]
    assert all("limit of calls" in call["error"] for call in calls[2:])
    assert tools.asked == ["Paris"] * 2
    assert len(engine.requests) == 2


def test_a_function_is_left_to_the_client(http, engine, tools) -> None:
    says(engine, f"{call_of('look')}\n{WEATHER}")
    answer = http.post(PATH, input="x", tools=[mcp("get_weather"), FUNCTION]).json()
    _, function, call = answer["output"]
    assert (function["type"], function["status"]) == ("function_call", "completed")
    assert (call["type"], call["output"]) == ("mcp_call", "sunny in Paris")
    says(engine, "Done.")
    given = {"type": "function_call_output", "call_id": function["call_id"], "output": "seen"}
    later = http.post(PATH, input=[given], previous_response_id=answer["id"])
    assert later.json()["output"][0]["content"][0]["text"] == "Done."


def test_tokens_of_all_rounds_are_bounded_together(http, engine, tools) -> None:
    says(engine, WEATHER, "one two three four five six seven eight nine ten " * 20)
    asked = {"tools": [mcp("get_weather")], "max_output_tokens": 60}
    answer = http.post(PATH, input="x", **asked).json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["usage"]["output_tokens"] == 60


def test_in_the_background(http, engine, tools) -> None:
    says(engine, WEATHER, "It is sunny.")
    events = http.events(PATH, input="x", tools=[mcp("get_weather")], background=True)
    assert events[-1]["response"]["output"][-1]["content"][0]["text"] == "It is sunny."


def test_no_tool_is_called_where_none_may_be(http, engine, tools) -> None:
    asked = {"tools": [mcp("get_weather")], "tool_choice": "none"}
    assert [i["type"] for i in http.post(PATH, input="x", **asked).json()["output"]] == ["message"]
    assert tools.tokens == []
    counted = http.post(f"{PATH}/input_tokens", input="x", tools=[mcp("get_weather")]).json()
    assert counted["input_tokens"] > 30


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"server_label": "other"}, "tools[0].server_label"),
        ({"server_url": "http://127.0.0.1:1/mcp"}, "tools[0].server_url"),
        ({"server_url": "http://169.254.169.254/latest"}, "tools[0].server_url"),
        ({"allowed_tools": ["nothing"]}, "tools[0].allowed_tools"),
        ({"require_approval": "always"}, "tools[0].require_approval"),
        ({"headers": {"host": "x"}}, "tools[0].headers"),
        ({"authorization": "a\nb"}, "tools[0].authorization"),
    ],
)
def test_what_cannot_be_used_is_refused(http, tools, tool: dict[str, Any], param: str) -> None:
    given = {"type": "mcp", "server_label": "local", **tool}
    response = http.post(PATH, input="x", tools=[given])
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_names_must_not_meet(http, served) -> None:
    function = {**FUNCTION, "name": "get_weather"}
    for more in (mcp("get_weather"), function):
        response = http.post(PATH, input="x", tools=[mcp("get_weather"), more])
        assert response.status_code == 400, response.text
    response = http.post(PATH, input="x", max_tool_calls=2)
    assert response.json()["error"]["param"] == "max_tool_calls"


def test_a_server_that_is_dead_or_no_server_of_tools(open_http) -> None:
    async def page(request: Any) -> Response:
        return Response("hello")

    other = Running(Starlette(routes=[Route("/mcp", page, methods=["GET", "POST"])]), "off")
    try:
        closed = socket.create_server(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        closed.close()
        http = open_http(
            tool_server=[f"dead=127.0.0.1:{port}", f"page=127.0.0.1:{other.port}"],
            tool_timeout_s=5.0,
        )
        for label in ("dead", "page"):
            tool = {"type": "mcp", "server_label": label}
            response = http.post(PATH, input="x", tools=[tool])
            assert response.status_code == 424, response.text
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("tool_server_failed", "tools[0]")
            assert f"server {label}" in error["message"]
    finally:
        other.stop()
