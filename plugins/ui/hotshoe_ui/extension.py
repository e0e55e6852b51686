"""What hook `hotshoe_server_extensions` names. Imports nothing heavy: every `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.config import check_options, option
from hotshoe_server.extensions import ServerExtension


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Whether there is a page."""

    ui: bool | None = option(None, "serve a page for people at /; default: on loopback only")

    def __post_init__(self) -> None:
        check_options(self)


EXTENSION = ServerExtension(build="hotshoe_ui.page:build", options=PageOptions)
