"""Files of unix sockets, however a server ends."""

import os

import httpx
import pytest
from tests.plugins.server.test_serving import NULL, children, is_running, wait_for

from hotshoe.errors import ConfigError
from hotshoe_server.socket_file import unix_socket
from hotshoe_server.sockets import open_unix


def test_it_is_there_for_as_long_as_the_context_lasts(tmp_path) -> None:
    before = set(children(os.getpid()))  # other tests' too, as the resource tracker of a pool
    path = tmp_path / "admin"
    with unix_socket("--uds", str(path)) as admin:
        assert admin.listener.getsockname() == str(path)
        [keeper] = set(children(os.getpid())) - before
    assert not path.exists() and not is_running(keeper)
    with unix_socket("--uds", None) as admin:
        assert admin is None and set(children(os.getpid())) <= before


def test_what_is_not_ours_stays(tmp_path) -> None:
    socket, file = tmp_path / "socket", tmp_path / "file"
    file.write_text("precious")
    with open_unix("--uds", str(socket)):
        for path in (socket, file):
            with pytest.raises(ConfigError), unix_socket("--uds", str(path)):
                pass
        assert socket.is_socket() and file.read_text() == "precious"


@pytest.mark.parametrize("processes", ["one", "engine", "several"])
def test_a_killed_server_leaves_nothing(run_server, leftovers, processes: str) -> None:
    layout = {
        "one": ["--no-engine-process"],
        "engine": [],
        "several": ["--api-processes", "2"],
    }[processes]
    path, door = leftovers / "admin", leftovers / "door"
    words = ("--admin-socket", str(path), "--uds", str(door))
    server = run_server(*NULL, *words, *layout, ready=False)
    wait_for(lambda: "ready: " in server.log.read_text())
    everybody = children(server.process.pid)
    assert path.is_socket() and door.is_socket()
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(map(is_running, everybody)))
    assert list(leftovers.iterdir()) == []


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_server_on_a_unix_socket(run_server, leftovers, processes: int) -> None:
    path = leftovers / "door"
    words = ("--uds", str(path), "--api-processes", str(processes))
    server = run_server(*NULL, *words, ready=False)
    wait_for(lambda: "ready: " in server.log.read_text())
    assert f"listening on unix:{path}" in server.log.read_text()
    door = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=door, base_url="http://any.name", timeout=60) as client:
        answer = client.post("/inference/v1/generate", json={"token_ids": [7], "max_tokens": 3})
        assert answer.json()["choices"][0]["token_ids"] == [8, 9, 10]
        assert client.post("/pause").status_code == 403  # it is no admin socket
    assert server.stop() == 0
    assert list(leftovers.iterdir()) == []


@pytest.mark.parametrize("option", ["--uds", "--admin-socket"])
@pytest.mark.parametrize("processes", [1, 2])
def test_another_server_gets_no_served_path(
    run_server, leftovers, processes: int, option: str
) -> None:
    path = leftovers / "admin"
    with open_unix("--uds", str(path)):
        words = (option, str(path), "--api-processes", str(processes))
        server = run_server(*NULL, *words, ready=False)
        assert server.process.wait(120) == 2
        assert f"{option} {path} is served by another process" in server.log.read_text()
        assert path.is_socket()
