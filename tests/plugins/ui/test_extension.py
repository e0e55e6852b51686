"""The page is there on loopback, and wherever it is asked for."""

from types import SimpleNamespace

import pytest

from hotshoe.errors import ConfigError
from hotshoe_server.config import ServerConfig
from hotshoe_ui.extension import EXTENSION, PageOptions
from hotshoe_ui.page import build


@pytest.mark.parametrize(
    ("host", "ui", "there"),
    [
        ("127.0.0.1", None, True),
        ("localhost", None, True),
        ("0.0.0.0", None, False),
        ("0.0.0.0", True, True),
        ("127.0.0.1", False, False),
    ],
)
def test_default(host: str, ui: bool | None, there: bool) -> None:
    server = SimpleNamespace(config=ServerConfig(host=host))
    parts = build(server, PageOptions(ui=ui))
    assert bool(parts.files) == there and not parts.endpoints


def test_options() -> None:
    assert EXTENSION.options is PageOptions
    with pytest.raises(ConfigError, match="ui must be"):
        PageOptions(ui="yes")
