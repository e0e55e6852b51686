"""Admin verbs that record what the engine computes, into files on the server.

The folder is the operator's choice, never a request's; an answer tells the file's name alone.
"""

from __future__ import annotations

from msgspec import Struct

from hotshoe.errors import RequestError
from hotshoe_server.call import Call
from hotshoe_server.endpoints.admin import ModelRequest
from hotshoe_server.extensions import Endpoint


class Recording(Struct):
    """Begun."""

    recording: bool = True


class Recorded(Struct):
    """Written."""

    file: str


class ProfileVerbs:
    """`/start_profile` and `/stop_profile`.

    Args:
        folder: Where traces go; None refuses.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    async def start(self, call: Call, body: ModelRequest) -> Recording:
        """Begin to record."""
        if self._folder is None:
            raise RequestError("profiles need a place: start the server with --profile-dir")
        await call.server.named(body.model).client.start_profile(self._folder)
        return Recording()

    async def stop(self, call: Call, body: ModelRequest) -> Recorded:
        """Write what was recorded."""
        return Recorded(await call.server.named(body.model).client.stop_profile())

    def endpoints(self) -> list[Endpoint]:
        """Return the routes."""
        return [
            Endpoint("POST", "/start_profile", self.start, "Record steps", True, answer=Recording),
            Endpoint("POST", "/stop_profile", self.stop, "Write them", True, answer=Recorded),
        ]
