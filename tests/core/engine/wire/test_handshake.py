"""Both ends prove the secret, and nobody else gets in or keeps anybody waiting."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotshoe.engine.wire import handshake
from hotshoe.engine.wire.handshake import MIN_SECRET_BYTES, NONCE_BYTES, greet, read_secret
from hotshoe.errors import ConfigError, EngineError

SECRET = b"s" * MIN_SECRET_BYTES


def meet(*secrets: bytes, listens: tuple[bool, bool] = (True, False)) -> list[str]:
    """Return what each end says of the other."""
    ends = socket.socketpair()

    def one(number: int) -> str:
        try:
            greet(ends[number], secrets[number], listens[number])
        except EngineError as error:
            return str(error)
        return "well met"

    with ends[0], ends[1], ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def test_ends_with_one_secret_meet_and_may_then_wait() -> None:
    assert meet(SECRET, SECRET) == ["well met"] * 2
    with socket.socket() as sock:
        assert sock.gettimeout() is None


def test_another_secret_is_noticed_on_both_sides() -> None:
    assert all("another secret" in said for said in meet(SECRET, b"t" * MIN_SECRET_BYTES))


def test_nobody_gets_in_by_saying_again_what_was_said() -> None:
    """As one that listens, too, and sends back all that it hears."""
    assert all("another secret" in said for said in meet(SECRET, SECRET, listens=(True, True)))


@pytest.mark.parametrize("said", [b"", b"x", b"x" * NONCE_BYTES, b"x" * 1000])
def test_who_says_nothing_more_is_not_waited_for(said: bytes, monkeypatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        with pytest.raises(EngineError, match=r"handshake: timed out|another secret"):
            greet(ours, SECRET, listens=True)


def test_an_end_that_goes_is_said() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(EngineError, match="broke off the handshake"):
        greet(ours, SECRET, listens=True)


def test_a_secret_is_read_from_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    assert read_secret(str(path)) == SECRET


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (None, 0, "No such file .*urandom"),
        (SECRET, 0o644, "can be read by others; run: chmod 600"),
        (b"short", 0o600, "has 5 bytes, fewer than 16"),
    ],
)
def test_secrets_that_are_none(
    content: bytes | None, mode: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=message):
        read_secret(str(path))
    with pytest.raises(ConfigError, match="several hosts need --cluster-secret-file"):
        read_secret(None)
