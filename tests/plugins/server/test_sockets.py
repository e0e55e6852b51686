"""Listening sockets."""

import socket

import pytest

from hotshoe.errors import ConfigError
from hotshoe_server.sockets import open_port, open_unix


def test_ports() -> None:
    with open_port("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is taken"):
            open_port("127.0.0.1", port)
    open_port("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["256.256.256.256", "192.0.2.1"])
def test_addresses_that_are_not_here(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        open_port(host, 0)


def test_unix_sockets_are_private_and_replace_dead_ones(tmp_path) -> None:
    path = tmp_path / "admin"
    with open_unix(str(path)):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ConfigError, match="served by another process"):
            open_unix(str(path))
    assert path.exists()
    open_unix(str(path)).close()


def test_files_are_never_replaced(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        open_unix(str(path))
    assert path.read_text() == "precious"
    with pytest.raises(ConfigError, match="cannot listen"):
        open_unix(str(tmp_path / "no" / "folder"))
