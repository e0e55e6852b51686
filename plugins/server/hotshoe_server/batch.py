"""`hotshoe run-batch`: answer a file of requests as a server would, without a server.

Each request goes through the server's own application, in this process, so that it means what it
means over HTTP. An answer is written when it is there, a whole line at a time: a run that ends
early goes on where it was when it is started again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from hotshoe.cli.options import add_engine_flags, add_option_flags, read_configs
from hotshoe.cli.parser import integer
from hotshoe.cli.session import say
from hotshoe.config import EngineConfig
from hotshoe.errors import EngineDeadError
from hotshoe.plugins import PluginManager
from hotshoe_server.batch_file import Entry, open_output, read_entries, read_line
from hotshoe_server.command import check_early, load
from hotshoe_server.config import ServerConfig

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from hotshoe_server.state import ServerState

URLS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
    *("/v1/messages", "/v1/score", "/v1/rerank", "/v1/classify", "/classify", "/pooling"),
)
GROUPS = {"parsing": "tool_call_parser", "request limits": "max_body_bytes"}
#: What a batch has no use for: everything about connections, keys and responses of other calls.
SKIP = (
    *("host", "port", "uds", "admin_socket", "engine_process", "api_processes"),
    *("ssl_certfile", "ssl_keyfile", "access_log", "log_format", "api_key", "api_key_file"),
    *("api_key_env", "admin_key_file", "unauthenticated_probes", "allowed_hosts"),
    *("allowed_origins", "response_store_bytes", "max_header_bytes", "read_timeout_s"),
    *("write_timeout_s", "shutdown_timeout_s"),
)
#: How often a request is tried that finds no room, or no engine as it starts anew.
MAX_TRIES = 5
RETRIED = (429, 503)
PROGRESS_S = 10.0


class RunBatch:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-i", "--input-file", type=Path, required=True, metavar="FILE", help="requests"
        )
        parser.add_argument(
            "-o",
            "--output-file",
            type=Path,
            required=True,
            metavar="FILE",
            help="answers; those that it has are not asked again",
        )
        parser.add_argument(
            "--max-concurrency",
            type=integer,
            default=0,
            metavar="N",
            help="most requests at once (default: twice --max-num-seqs)",
        )
        parser.add_argument("-q", "--quiet", action="store_true", help="no report on stderr")
        add_engine_flags(parser)
        add_option_flags(parser, ServerConfig, GROUPS, skip=SKIP)

    def run(self, args: Namespace) -> int:
        engine, config = read_configs(args, (EngineConfig, ServerConfig))
        tell = (lambda line: None) if args.quiet else say
        entries = read_entries(args.input_file, URLS)
        check_early(config, PluginManager(disabled=engine.disable_plugins))
        with open_output(args.output_file, entries) as (output, answered):
            left = [entry for entry in entries if entry.custom_id not in answered]
            if answered:
                tell(f"{len(answered)} of {len(entries)} requests have been answered before")
            if not left:
                return 0
            at_once = args.max_concurrency or 2 * engine.max_num_seqs
            with args.input_file.open("rb") as source:
                job = Job(source, output, left, at_once, tell)
                num_failed = asyncio.run(job.run(engine, config))
        if num_failed:
            tell(f"{num_failed} requests failed; {args.output_file} says why of each")
        return 1 if num_failed else 0


class Job:
    """The requests of one run.

    Args:
        source, output: The files.
        entries: What is to be asked.
        at_once: How many requests run at once.
        tell: Prints a line for people.
    """

    def __init__(
        self,
        source: IO[bytes],
        output: IO[bytes],
        entries: Sequence[Entry],
        at_once: int,
        tell: Callable[[str], None],
    ) -> None:
        self._source = source
        self._output = output
        self._left = iter(entries)
        self._num = len(entries)
        self._at_once = min(at_once, len(entries))
        self._tell = tell
        self._num_done = self._num_failed = 0

    async def run(self, engine: EngineConfig, config: ServerConfig) -> int:
        """Load the model, answer everything, and return how many requests failed.

        Raises:
            UserError: The engine cannot be built as asked.
            EngineDeadError: It has ended for good.
        """
        from hotshoe_server.app import create_app
        from hotshoe_server.fleet import make_state
        from hotshoe_server.named_adapters import named_adapters

        plugins = PluginManager(disabled=engine.disable_plugins)
        client = load(engine, "process", self._tell)
        try:
            state = make_state(config, client, plugins)
            try:
                app = create_app(state, adapters=named_adapters(state, plugins))
                await self._answer_all(state, app)
            finally:
                state.store.close()
        finally:
            client.close()
        return self._num_failed

    async def _answer_all(self, state: ServerState, app: ASGIApp) -> None:
        progress = asyncio.create_task(self._progress())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._at_once):
                    group.create_task(self._answer_some(state, app))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            progress.cancel()
        self._tell(f"answered {self._num_done} requests")

    async def _progress(self) -> None:
        begin = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_S)
            rate = self._num_done / (time.monotonic() - begin)
            self._tell(f"{self._num_done} of {self._num} requests, {rate:.1f} a second")

    async def _answer_some(self, state: ServerState, app: ASGIApp) -> None:
        """Answer one request after another, until none is left."""
        for entry in self._left:
            line = read_line(self._source, entry)
            status, body = await self._answer(state, app, line.url, msgspec.json.encode(line.body))
            self._num_done += 1
            self._num_failed += status != 200
            self._output.write(written(entry.custom_id, status, body))
            self._output.flush()

    async def _answer(
        self, state: ServerState, app: ASGIApp, url: str, body: bytes
    ) -> tuple[int, bytes]:
        status, found = await post(app, url, body)
        for number in range(1, MAX_TRIES):
            if status not in RETRIED:
                break
            if state.client.is_over:
                raise EngineDeadError("the engine has ended; start again to go on from here")
            await asyncio.sleep(number)
            status, found = await post(app, url, body)
        return status, found


def written(custom_id: str, status: int, body: bytes) -> bytes:
    """Return a line of the output."""
    name = secrets.token_hex(12)
    response = {"status_code": status, "request_id": name, "body": msgspec.Raw(body)}
    row = {
        "id": f"batch_req_{name}",
        "custom_id": custom_id,
        "response": response,
        "error": None,
    }
    return msgspec.json.encode(row) + b"\n"


async def post(app: ASGIApp, path: str, body: bytes) -> tuple[int, bytes]:
    """Send a request to an application in this process; return status and body."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    gone: asyncio.Event = asyncio.Event()  # which is never set: this client stays
    status, found = 0, list[bytes]()

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await gone.wait()
        raise AssertionError

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            found.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(found)
