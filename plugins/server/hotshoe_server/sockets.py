"""Listening sockets and their certificate, looked at before the model is loaded.

So a taken port or an unusable key is known at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from hotshoe.errors import ConfigError

BACKLOG = 2048
#: What the kernel keeps for a client that reads nothing: twice as much on Linux, some megabytes
#: where nobody says. Streams then wait; a long distance still gets megabytes a second.
SEND_BUFFER_BYTES = 2**18


def open_port(host: str, port: int) -> socket.socket:
    """Listen on a TCP port.

    Raises:
        ConfigError: The port is taken, or the address is none of this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with _closed_on_error(socket.socket(family, kind, protocol)) as listener:
            # Lets a restarted server take its port back at once; two servers never share one.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            listener.bind(address)
            listener.listen(BACKLOG)
            return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} of {host} is taken, perhaps by another server; choose one with --port"
            ) from None
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; "
            "choose others with --host and --port"
        ) from None


def open_unix(option: str, path: str, private: bool = True) -> socket.socket:
    """Listen on a unix socket; one that nobody serves is replaced.

    Args:
        option: The flag that names the path.
        path: Of the socket's file.
        private: Let the owner alone use it. Otherwise the process's umask says who may.

    Raises:
        ConfigError: Somebody serves it, or the path cannot be used.
    """
    try:
        remove_dead(option, Path(path))
        with _closed_on_error(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
            mask = os.umask(0o177)
            try:
                if not private:
                    os.umask(mask)
                listener.bind(path)
            finally:
                os.umask(mask)
            listener.listen(BACKLOG)
            return listener
    except OSError as error:
        raise ConfigError(f"cannot listen on {option} {path}: {error.strerror or error}") from None


def check_certificate(certfile: str, keyfile: str) -> None:
    """Read a certificate and its key once, before anything depends on them.

    Raises:
        ConfigError: One cannot be read, is encrypted, or does not belong to the other.
    """
    try:
        # Without a password given, an encrypted key would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password="")
    except ssl.SSLError:
        raise ConfigError(
            f"--ssl-certfile {certfile} and --ssl-keyfile {keyfile} cannot be used: "
            "they are no PEM files, the key is encrypted, or it belongs to another certificate"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot read --ssl-certfile {certfile} or --ssl-keyfile {keyfile}: {error.strerror}"
        ) from None


@contextlib.contextmanager
def _closed_on_error(made: socket.socket) -> Iterator[socket.socket]:
    try:
        yield made
    except BaseException:
        made.close()
        raise


def remove_dead(option: str, path: Path) -> None:
    """Remove a socket file that a killed server has left.

    Raises:
        ConfigError: Somebody serves it, or may, or it is no socket.
    """
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{option} {path} exists and is no socket")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(probe):
        code = probe.connect_ex(str(path))
    if code == 0:
        raise ConfigError(f"{option} {path} is served by another process")
    if code != errno.ECONNREFUSED:  # such as one of datagrams, or of another user
        raise ConfigError(
            f"{option} {path} may be another program's: {os.strerror(code)}; remove the file if "
            "nothing uses it, or choose another path"
        )
    path.unlink()
