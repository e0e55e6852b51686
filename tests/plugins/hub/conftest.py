"""A hub on this machine: answers from a directory what the client library asks of the real one."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

FIRST, SECOND = "a" * 40, "b" * 40


class Hub:
    """Holds one model, `org/tiny`, and says what was asked for.

    Attributes:
        sizes: What it says of files' sizes, where that is not the truth.
        revisions: Commits by what else they are called; a commit is its own name.
        refused: An error code for every request, with its status, as the real one gives them.
        asked: Methods and paths, in order.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.revisions = {"main": FIRST, "v2": SECOND, FIRST: FIRST, SECOND: SECOND}
        self.refused: tuple[int, str] | None = None
        self.sizes: dict[str, int | None] = {}
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def files_asked(self) -> set[str]:
        """Return the files that were downloaded."""
        return {line.rsplit("/", 1)[1] for line in self.asked if line.startswith("GET /org/tiny/")}

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body."""
        if self.refused:
            return self.refused[0], {"X-Error-Code": self.refused[1]}, b"{}"
        parts = path.split("?", maxsplit=1)[0].strip("/").split("/")
        if parts[:4] == ["api", "models", "org", "tiny"] and len(parts) in (4, 6):
            return self._describe(*(parts[4:] or ("revision", "main")))
        if parts[:3] == ["org", "tiny", "resolve"] and len(parts) > 4:
            return self._file(parts[3], "/".join(parts[4:]))
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"

    def _describe(self, what: str, revision: str) -> tuple[int, dict[str, str], bytes]:
        if revision not in self.revisions:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        paths = sorted(p for p in self.directory.rglob("*") if p.is_file())
        names = [str(path.relative_to(self.directory)) for path in paths]
        if what == "tree":
            sizes = [path.stat().st_size for path in paths]
            entries = [
                {"type": "file", "path": name, "size": size, "oid": _oid(path)}
                for name, size, path in zip(names, sizes, paths, strict=True)
            ]
            return 200, {}, json.dumps(entries).encode()
        sizes = {name: path.stat().st_size for name, path in zip(names, paths, strict=True)}
        siblings = [{"rfilename": n, "size": s} for n, s in {**sizes, **self.sizes}.items()]
        about = {"id": "org/tiny", "sha": self.revisions[revision], "siblings": siblings}
        return 200, {}, json.dumps(about).encode()

    def _file(self, revision: str, name: str) -> tuple[int, dict[str, str], bytes]:
        path = self.directory / name
        if not path.is_file():
            return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
        headers = {"ETag": f'"{_oid(path)}"', "X-Repo-Commit": self.revisions[revision]}
        return 200, headers, path.read_bytes()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked.append(f"{self.command} {self.path}")
                status, headers, body = hub.answer(self.path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *args: object) -> None:
                pass

        return Handler


def _oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@pytest.fixture
def at_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client library ask this hub."""
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_TOKEN_PATH": str(tmp_path / "token"),
        "HF_HUB_OFFLINE": False,
    }.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub whose model has a file of every kind."""
    directory = tmp_path / "hub"
    (directory / "original").mkdir(parents=True)
    wanted = ("config.json", "tokenizer.json", "chat_template.jinja", "merges.txt")
    weights = ("model-1.safetensors", "model.safetensors.index.json")
    others = ("pytorch_model.bin", "modeling.py", "consolidated.safetensors", "original/a.json")
    for name in (*wanted, *weights, *others):
        (directory / name).write_text("{}" + name)
    found = Hub(directory)
    yield found
    found.close()
