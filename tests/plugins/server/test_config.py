"""The server's configuration."""

import pytest

from hotshoe.errors import ConfigError
from hotshoe_server.config import SERVER_GROUPS, ServerConfig


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("model.example", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert ServerConfig(host=host).loopback is loopback


@pytest.mark.parametrize(
    "options",
    [
        {"port": 65536},
        {"port": -1},
        {"port": "8000"},
        {"max_body_bytes": 0},
        {"shutdown_timeout_s": -1.0},
        {"ssl_certfile": "x"},
        {"ssl_keyfile": "x"},
        {"api_processes": 2, "engine_process": False},
        {"api_key": "not-a-list"},
        {"uds": "/x", "ssl_certfile": "x", "ssl_keyfile": "x"},
        {"uds": "/x", "admin_socket": "/x"},
    ],
)
def test_bad_values(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(**options)


def test_a_unix_socket_is_on_this_machine() -> None:
    assert ServerConfig(host="0.0.0.0", uds="/x").loopback


def test_groups_begin_with_fields() -> None:
    assert set(SERVER_GROUPS.values()) <= set(ServerConfig.__dataclass_fields__)


def test_no_name_is_the_engines() -> None:
    from hotshoe.config import EngineConfig

    assert not set(ServerConfig.__dataclass_fields__) & set(EngineConfig.__dataclass_fields__)


def test_tool_servers_have_labels() -> None:
    words = ["a.com:80,b:1/x", "own=https://c.com/mcp", "https://d.com:8/m?k=v"]
    assert ServerConfig(tool_server=words).tool_servers == {
        "a.com:80": "http://a.com:80/mcp",
        "b:1": "http://b:1/x",
        "own": "https://c.com/mcp",
        "d.com:8": "https://d.com:8/m?k=v",
    }
    for wrong in ("demo", "", "ftp://a/b", "http:///x", "http://me:word@a/x", "x=y", "a:1,a:1"):
        with pytest.raises(ConfigError, match="tool_server: "):
            ServerConfig(tool_server=[wrong])
