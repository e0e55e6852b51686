"""Profiles of a running engine, on its admin socket."""

import asyncio
import gzip
import json
from pathlib import Path

import aiohttp
from tests.plugins.served import serve


def post(socket: Path, path: str, body: dict | None = None) -> tuple[int, dict]:
    async def send() -> tuple[int, dict]:
        connector = aiohttp.UnixConnector(str(socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"http://localhost{path}", json=body) as response,
        ):
            return response.status, await response.json()

    return asyncio.run(send())


def test_a_trace_of_some_steps(tmp_path: Path) -> None:
    socket, folder = tmp_path / "admin", tmp_path / "profiles"
    with serve(
        "demo", "--platform", "cpu", "--admin-socket", str(socket), "--profile-dir", str(folder)
    ):
        assert post(socket, "/stop_profile")[0] == 400
        assert post(socket, "/start_profile") == (200, {"recording": True})
        status, answer = post(socket, "/start_profile")
        assert status == 400
        assert "already" in answer["error"]["message"]
        asked = {"prompt": [1, 2, 3], "max_tokens": 3, "ignore_eos": True}
        assert post(socket, "/v1/completions", asked)[0] == 200
        status, answer = post(socket, "/stop_profile")
        assert status == 200
    assert "/" not in answer["file"]
    with gzip.open(folder / answer["file"]) as file:
        names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
    assert any("runner.py" in name for name in names)  # what ran is named by its stack


def test_refusals(tmp_path: Path) -> None:
    socket = tmp_path / "admin"
    with serve("demo", "--platform", "null", "--admin-socket", str(socket)) as served:
        status, answer = post(socket, "/start_profile")
        assert status == 400
        assert "--profile-dir" in answer["error"]["message"]
        status, answer = post(socket, "/stop_profile")
        assert status == 400
        assert "cannot record" in answer["error"]["message"]
        assert "/start_profile" not in served.get("/openapi.json")
