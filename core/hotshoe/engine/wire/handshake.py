"""Proves to both ends of a TCP connection that the other one knows the secret of the cluster.

Each end sends random bytes and answers with the HMAC of both ends' bytes (RFC 2104, SHA-256), so
that nothing which is heard can be said again. Nobody reads a message of unknown length before that.
What follows is not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import stat
from pathlib import Path

from hotshoe.errors import ConfigError, EngineError

NONCE_BYTES = PROOF_BYTES = 32
MIN_SECRET_BYTES = 16
HANDSHAKE_S = 5.0


def read_secret(path: str | None) -> bytes:
    """Return the secret in a file.

    Raises:
        ConfigError: There is no file, others can read it, or it is too short.
    """
    make = "make one with: (umask 077; head -c 32 /dev/urandom > FILE), the same on every host"
    if path is None:
        raise ConfigError(f"several hosts need --cluster-secret-file FILE; {make}")
    try:
        mode, secret = Path(path).stat().st_mode, Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cluster_secret_file: {error}; {make}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            f"cluster_secret_file {path} can be read by others; run: chmod 600 {path}"
        )
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"cluster_secret_file {path} has {len(secret)} bytes, fewer than {MIN_SECRET_BYTES}; "
            f"{make}"
        )
    return secret


def greet(sock: socket.socket, secret: bytes, listens: bool) -> None:
    """Prove that this end knows the secret, and see that the other one does.

    Args:
        sock: Connected. It blocks afterwards, without a limit.
        secret: Of the cluster.
        listens: This end has accepted the connection; exactly one has.

    Raises:
        EngineError: The other end does not know the secret, says nothing, or goes.
    """
    sock.settimeout(HANDSHAKE_S)
    try:
        own = secrets.token_bytes(NONCE_BYTES)
        sock.sendall(own)
        other = _exactly(sock, NONCE_BYTES)
        sock.sendall(_proof(secret, own, other, listens))
        proof = _exactly(sock, PROOF_BYTES)
    except OSError as error:
        raise EngineError(f"the other end broke off the handshake: {error}") from None
    if not hmac.compare_digest(proof, _proof(secret, other, own, not listens)):
        raise EngineError("the other end has another secret; give every host the same file")
    sock.settimeout(None)


def _proof(secret: bytes, own: bytes, other: bytes, listens: bool) -> bytes:
    """Return what the end proves whose bytes are `own`; ends differ, so none can echo."""
    return hmac.digest(secret, (b"listens" if listens else b"connects") + own + other, "sha256")


def _exactly(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = sock.recv(count - len(found))
        if not piece:
            raise OSError("it closed the connection")
        found += piece
    return found
