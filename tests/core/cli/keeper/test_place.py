"""Where keepers are met: a digest of what starts are alike in, a folder that is the user's own."""

import os
import socket
import sys
from pathlib import Path

from hotshoe.cli.keeper import place


def test_starts_that_differ_have_digests_that_differ(monkeypatch) -> None:
    first = place.digest()
    assert place.digest() == first and len(first) == 32
    monkeypatch.setenv("TERM", "of another window")
    monkeypatch.setattr(sys, "path", ["another folder", *sys.path[1:]])
    assert place.digest() == first, "the first folder of the path is that of the program"
    found = {first}
    for change in (
        lambda: monkeypatch.setenv("SOME_LIBRARY_THREADS", "3"),
        lambda: monkeypatch.setattr(sys, "path", [*sys.path, "one more"]),
        lambda: monkeypatch.setattr(place, "__version__", "another"),
        lambda: monkeypatch.setattr(sys, "warnoptions", ["error"]),
        lambda: monkeypatch.setattr(os, "sched_getaffinity", lambda number: {977}),
        lambda: monkeypatch.setattr(os, "getgroups", lambda: [977]),
    ):
        change()
        found.add(place.digest())
    assert len(found) == 7


def test_login_sessions_have_one_control_group(monkeypatch) -> None:
    for text, shown in (
        ("0::/user.slice/user-1000.slice/session-12.scope\n", "session\n"),
        ("0::/system.slice/keeper.service\n", "keeper.service\n"),
    ):
        monkeypatch.setattr(Path, "read_text", lambda self, encoding, text=text: text)
        assert place._control_group().endswith(shown)


def test_only_a_folder_that_is_closed_to_others_is_private(tmp_path: Path, monkeypatch) -> None:
    own = tmp_path / "own"
    assert not place.is_private(own)
    own.mkdir(mode=0o700)
    assert place.is_private(own)
    (tmp_path / "link").symlink_to(own)
    assert not place.is_private(tmp_path / "link")
    own.chmod(0o710)
    assert not place.is_private(own)
    own.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: own.stat().st_uid + 1)
    assert not place.is_private(own)


def test_the_other_end_must_be_the_same_users(monkeypatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert place.is_own(ours)
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        assert not place.is_own(ours)
