"""Who may come in: keys, the Host header, and which prefix cache a caller shares.

Everything is denied unless a key, or the absence of any configured key, allows it; paths that no
route knows are no exception. Each route checks again what it needs (`hotshoe_server.route`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from hotshoe.errors import ConfigError
from hotshoe_server.config import ServerConfig
from hotshoe_server.errors import ApiError

#: Where the guard leaves its finding in the ASGI scope.
CALLER = "hotshoe.caller"
#: Set in the scope of connections to the admin socket.
ADMIN_SOCKET = "hotshoe.admin_socket"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
MIN_KEY_CHARS = 8
#: The only endpoints that need no key. Beside them there are files of bytes that are the same for
#: everybody (`hotshoe_server.extensions.PublicFile`).
PUBLIC_PATHS = frozenset({"/live", "/ready"})
#: Those that need none with `--unauthenticated-probes`.
PROBES = frozenset({"/health", "/ping", "/metrics"})


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `tenant` is None where no keys are used."""

    tenant: str | None = None
    admin: bool = False


class Keyring:
    """Digests of keys, compared in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __len__(self) -> int:
        return len(self._digests)

    def find(self, key: bytes) -> bytes | None:
        """Return the digest of a key in the ring; the time it takes tells only the ring's size."""
        if not self._digests:
            return None
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest if any(matches) else None


class Guard:
    """ASGI middleware around everything.

    Args:
        app: What is guarded.
        config: Keys and hosts.
        files: Paths that need no key, beside PUBLIC_PATHS.

    Raises:
        ConfigError: As for `keyrings`.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, files: Collection[str]) -> None:
        self._app = app
        self._public = public_paths(config).union(files)
        self._keys, self._admin_keys = keyrings(config)
        is_port = config.loopback and config.uds is None  # no page leads to a unix socket
        names = (*_LOOPBACK_NAMES, config.host) if is_port else ()
        self._hosts = frozenset(name.lower() for name in (*names, *config.allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it."""
        try:
            scope[CALLER] = self._identify(scope)
            if scope[CALLER] is None and scope["path"] not in self._public:
                raise ApiError("invalid_api_key")
        except ApiError as error:
            await _refuse(error, send)
        else:
            if scope["path"].endswith("/"):  # as some clients write paths
                scope["path"] = scope["path"].rstrip("/") or "/"
            await self._app(scope, receive, send)

    def knows(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Return whether a request with these headers would be let in, to an ordinary route."""
        try:
            return self._identify({"headers": headers}) is not None
        except ApiError:
            return False

    def _identify(self, scope: Scope) -> Caller | None:
        if scope.get(ADMIN_SOCKET):
            return Caller(admin=True)
        self._check_host(_only(scope, b"host"))
        scheme, _, key = _only(scope, b"authorization").partition(b" ")
        # Anthropic's clients have a header of their own for it.
        key = key.strip() if scheme.lower() == b"bearer" else _only(scope, b"x-api-key").strip()
        if self._admin_keys.find(key):
            return Caller(admin=True)
        if not self._keys:
            return Caller()
        digest = self._keys.find(key)
        return Caller(hashlib.blake2b(digest, digest_size=12).hexdigest()) if digest else None

    def _check_host(self, value: bytes) -> None:
        """Refuse names that are not ours: a web page may have its own name lead to this machine.

        Raises:
            ApiError: The name is unknown.
        """
        if not self._hosts:
            return
        host = value.decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name not in self._hosts:
            raise ApiError("host_not_allowed")


def _only(scope: Scope, name: bytes) -> bytes:
    """Return a header's value: of two, none, as whoever is in between may have seen the other."""
    values = [value for given, value in scope["headers"] if given == name]
    return values[0] if len(values) == 1 else b""


def public_paths(config: ServerConfig) -> frozenset[str]:
    """Return the paths of endpoints that need no key."""
    return PUBLIC_PATHS | PROBES if config.unauthenticated_probes else PUBLIC_PATHS


def keyrings(config: ServerConfig) -> tuple[Keyring, Keyring]:
    """Return the keys of users and of admins.

    Raises:
        ConfigError: Keys cannot be read, one is bad, or one is a user's and an admin's.
    """
    users = [*config.api_key, *_from_file(config.api_key_file), *_from_env(config.api_key_env)]
    admins = _from_file(config.admin_key_file)
    for key in (*users, *admins):
        if len(key) < MIN_KEY_CHARS or not key.isascii() or any(c.isspace() for c in key):
            raise ConfigError(
                f"a key has at least {MIN_KEY_CHARS} characters, all ASCII and none a space"
            )
    if not set(users).isdisjoint(admins):
        raise ConfigError("a key of --admin-key-file is a user's key, too; give admins their own")
    return Keyring(users), Keyring(admins)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _from_file(file: str | None) -> list[str]:
    return [] if file is None else read_keys(Path(file))


def _from_env(name: str | None) -> list[str]:
    """Read keys, separated by white space, from a variable that the user has named.

    Raises:
        ConfigError: It is not set, or empty.
    """
    keys = [] if name is None else os.environ.get(name, "").split()  # noqa: TID251
    if name is not None and not keys:
        raise ConfigError(f"the environment variable {name} (--api-key-env) holds no key")
    return keys


def read_keys(path: Path) -> list[str]:
    """Read a file of keys: one a line; empty lines and those that begin with # do not count.

    Raises:
        ConfigError: The file is unreadable or holds no key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file: cannot read the keys in {path}: {error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ConfigError(f"{path} holds no key")
    return keys


async def _refuse(error: ApiError, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    body = error.body()
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
