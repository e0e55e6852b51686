"""The admin socket's file, however a server ends."""

import os

import pytest
from tests.plugins.server.test_serving import NULL, children, is_running, wait_for

from hotshoe.errors import ConfigError
from hotshoe_server.admin_socket import admin_socket
from hotshoe_server.sockets import open_unix


def test_it_is_there_for_as_long_as_the_context_lasts(tmp_path) -> None:
    before = set(children(os.getpid()))  # other tests' too, as the resource tracker of a pool
    path = tmp_path / "admin"
    with admin_socket(str(path)) as admin:
        assert admin.listener.getsockname() == str(path)
        [keeper] = set(children(os.getpid())) - before
    assert not path.exists() and not is_running(keeper)
    with admin_socket(None) as admin:
        assert admin is None and set(children(os.getpid())) <= before


def test_what_is_not_ours_stays(tmp_path) -> None:
    socket, file = tmp_path / "socket", tmp_path / "file"
    file.write_text("precious")
    with open_unix(str(socket)):
        for path in (socket, file):
            with pytest.raises(ConfigError), admin_socket(str(path)):
                pass
        assert socket.is_socket() and file.read_text() == "precious"


@pytest.mark.parametrize("processes", ["one", "engine", "several"])
def test_a_killed_server_leaves_nothing(run_server, leftovers, processes: str) -> None:
    layout = {
        "one": ["--no-engine-process"],
        "engine": [],
        "several": ["--api-processes", "2"],
    }[processes]
    path = leftovers / "admin"
    server = run_server(*NULL, "--admin-socket", str(path), *layout)
    everybody = children(server.process.pid)
    assert path.is_socket()
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(map(is_running, everybody)))
    assert list(leftovers.iterdir()) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_another_server_gets_no_served_path(run_server, leftovers, processes: int) -> None:
    path = leftovers / "admin"
    with open_unix(str(path)):
        words = ("--admin-socket", str(path), "--api-processes", str(processes))
        server = run_server(*NULL, *words, ready=False)
        assert server.process.wait(120) == 2
        assert "is served by another process" in server.log.read_text()
        assert path.is_socket()
