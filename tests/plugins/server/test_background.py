"""Responses that nobody's connection holds: polled, followed again, cancelled, dropped."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from tests.plugins.server.conftest import Gate, Http, ScriptedEngine

PATH = "/v1/responses"
END_S = 60


async def poll(http: Http, path: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(END_S):
        while True:
            answer = (await http.send("GET", path)).json()
            if until(answer):
                return answer
            await asyncio.sleep(0.005)


def ended(answer: dict[str, Any]) -> bool:
    return answer["status"] not in ("queued", "in_progress")


def events(text: str) -> list[dict[str, Any]]:
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.rpartition("data: ")[2]) for block in blocks]


async def begun(http: Http, **body: Any) -> dict[str, Any]:
    response = await http.send("POST", PATH, json={"input": "Hi", "background": True, **body})
    assert response.status_code == 200, response.text
    return response.json()


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())


def test_it_is_polled_until_its_end(http: Http, gate: Gate) -> None:
    async def work() -> None:
        first = await begun(http)
        assert (first["status"], first["background"], first["output"]) == ("queued", True, [])
        path = f"{PATH}/{first['id']}"
        assert http.state.num_open == 1
        gate.allow(1)
        await poll(http, path, lambda answer: answer["status"] == "in_progress")
        early = await http.send(
            "POST", PATH, json={"input": "x", "previous_response_id": first["id"]}
        )
        assert early.json()["error"]["param"] == "previous_response_id"
        gate.allow(100)
        answer = await poll(http, path, ended)
        assert answer["status"] == "completed"
        assert answer["output"][0]["content"][0]["text"] == "Hello there"
        again = {"input": "Go on", "previous_response_id": first["id"]}
        assert (await http.send("POST", PATH, json=again)).status_code == 200
        assert (http.state.num_open, http.state.body_bytes, http.state.background) == (0, 0, set())

    run(work)


def test_a_stream_is_taken_up_again(http: Http, gate: Gate) -> None:
    async def work() -> None:
        making = asyncio.create_task(
            http.send("POST", PATH, json={"input": "Hi", "background": True, "stream": True})
        )
        gate.allow(1)
        while not http.state.in_flight:
            await asyncio.sleep(0.005)
        path = f"{PATH}/{next(iter(http.state.in_flight))}"
        following = asyncio.create_task(http.send("GET", f"{path}?stream=true&starting_after=1"))
        await asyncio.sleep(0.05)
        gate.allow(100)
        whole = events((await making).text)
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        names = [event["type"].removeprefix("response.") for event in whole]
        assert (names[:3], names[-1]) == (["created", "queued", "in_progress"], "completed")
        assert events((await following).text) == whole[2:]
        last = len(whole) - 1
        for after in (0, last - 1, last):
            again = await http.send("GET", f"{path}?stream=true&starting_after={after}")
            assert events(again.text) == whole[after + 1 :]
        beyond = await http.send("GET", f"{path}?stream=true&starting_after={last + 1}")
        assert beyond.json()["error"]["param"] == "starting_after"
        assert (await http.send("GET", path)).json() == whole[-1]["response"]

    run(work)


def test_who_leaves_the_stream_leaves_the_response_alone(http: Http, gate: Gate) -> None:
    async def work() -> None:
        body = {"input": "Hi", "background": True, "stream": True}
        leaving = asyncio.create_task(http.send("POST", PATH, json=body))
        while not http.state.in_flight:
            await asyncio.sleep(0.005)
        path = f"{PATH}/{next(iter(http.state.in_flight))}"
        leaving.cancel()
        gate.allow(100)
        assert (await poll(http, path, ended))["status"] == "completed"

    run(work)


@pytest.mark.parametrize("stream", [False, True])
def test_it_is_cancelled(http: Http, engine: ScriptedEngine, gate: Gate, stream: bool) -> None:
    async def work() -> None:
        if stream:
            body = {"input": "Hi", "background": True, "stream": True}
            making = asyncio.create_task(http.send("POST", PATH, json=body))
            while not http.state.in_flight:
                await asyncio.sleep(0.005)
            path = f"{PATH}/{next(iter(http.state.in_flight))}"
        else:
            path = f"{PATH}/{(await begun(http))['id']}"
        gate.allow(1)
        await poll(http, path, lambda answer: answer["status"] == "in_progress")
        answer = (await http.send("POST", f"{path}/cancel")).json()
        assert answer["status"] == "cancelled"
        assert (await http.send("POST", f"{path}/cancel")).json() == answer
        assert not http.state.in_flight
        if stream:
            told = events((await making).text)
            assert told[-1]["type"] == "response.incomplete"
            assert told[-1]["response"] == answer

    run(work)


def test_only_what_runs_in_the_background_is_cancelled(http: Http) -> None:
    answer = http.post(PATH, input="Hi").json()
    response = http("POST", f"{PATH}/{answer['id']}/cancel")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_value")
    assert http("POST", f"{PATH}/resp_none/cancel").status_code == 404


def test_deleting_it_ends_it(http: Http, gate: Gate) -> None:
    async def work() -> None:
        path = f"{PATH}/{(await begun(http))['id']}"
        gate.allow(1)
        assert (await http.send("DELETE", path)).json()["deleted"] is True
        assert (await http.send("GET", path)).status_code == 404
        assert not http.state.in_flight

    run(work)


def test_a_failure_is_its_end(http: Http, engine: ScriptedEngine) -> None:
    engine.fail_after = 1

    async def work() -> None:
        path = f"{PATH}/{(await begun(http))['id']}"
        answer = await poll(http, path, ended)
        assert (answer["status"], answer["error"]["code"]) == ("failed", "server_error")

    run(work)


def test_what_is_wrong_at_once_is_said_at_once(http: Http, open_http: Any) -> None:
    long = http.post(PATH, input="x" * 4000, background=True).json()["error"]
    assert (long["code"], long["param"]) == ("context_length_exceeded", "input")
    many = http.post(PATH, input="x", background=True, max_output_tokens=9999).json()["error"]
    assert many["param"] == "max_output_tokens"
    none = open_http(response_store_bytes=0).post(PATH, input="x", background=True)
    assert none.json()["error"]["param"] == "background"


def test_what_outgrows_the_store_ends(open_http: Any, engine: ScriptedEngine) -> None:
    http = open_http(response_store_bytes=4000)
    engine.reply = "word " * 300

    async def work() -> None:
        body = {"input": "Hi", "background": True, "stream": True}
        text = (await http.send("POST", PATH, json=body)).text
        assert json.loads(text.rpartition("data: ")[2])["error"]["code"] == "response_not_found"
        async with asyncio.timeout(END_S):
            while http.state.in_flight:
                await asyncio.sleep(0.005)
        assert http.state.store.num_bytes == 0

    run(work)


def test_another_tenant_neither_sees_nor_ends_it(open_http: Any, engine: ScriptedEngine) -> None:
    http = open_http(api_key=["first-key", "second-key"])
    engine.gate = Gate()
    mine, theirs = ({"authorization": f"Bearer {n}-key"} for n in ("first", "second"))

    async def work() -> None:
        body = {"input": "Hi", "background": True, "stream": True}
        making = asyncio.create_task(http.send("POST", PATH, json=body, headers=mine))
        while not http.state.in_flight:
            await asyncio.sleep(0.005)
        path = f"{PATH}/{next(iter(http.state.in_flight))}"
        for method, where in (
            ("GET", path),
            ("GET", f"{path}?stream=true"),
            ("POST", f"{path}/cancel"),
            ("DELETE", path),
        ):
            assert (await http.send(method, where, headers=theirs)).status_code == 404
        assert not engine.unwanted
        engine.gate.allow(100)
        assert events((await making).text)[-1]["type"] == "response.completed"

    run(work)


@pytest.mark.slow
def test_any_process_knows_the_responses_of_all(run_server: Any) -> None:
    server = run_server("demo", "--platform", "cpu", "--api-processes", "2")
    body = {"input": "Hi", "background": True, "max_output_tokens": 40, "ignore_eos": True}

    def ask(method: str, path: str, **more: Any) -> httpx.Response:
        # A connection of its own comes to any of the processes.
        return httpx.request(method, server.url + path, timeout=END_S, verify=False, **more)

    made = [ask("POST", PATH, json={**body, "stream": i % 2 > 0}) for i in range(8)]
    found = [events(r.text)[0]["response"] if i % 2 else r.json() for i, r in enumerate(made)]
    for number, answer in enumerate(found):
        path, end = f"{PATH}/{answer['id']}", time.monotonic() + END_S
        while not ended(answer) and time.monotonic() < end:
            answer = ask("GET", path).json()
        assert (answer["status"], answer["usage"]["output_tokens"]) == ("incomplete", 40)
        assert {ask("GET", path).json()["status"] for _ in range(4)} == {"incomplete"}
        if number % 2:
            again = ask("GET", path, params={"stream": "true", "starting_after": 1})
            assert events(again.text) == events(made[number].text)[2:]
    # Whoever is asked ends what another process makes, and forgets it.
    long = {**body, "max_output_tokens": 2000}
    for _ in range(4):
        path = f"{PATH}/{ask('POST', PATH, json=long).json()['id']}"
        assert ask("POST", f"{path}/cancel").json()["status"] == "cancelled"
        assert ask("DELETE", path).status_code == 200
        assert {ask("GET", path).status_code for _ in range(4)} == {404}
