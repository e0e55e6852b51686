"""Keepers: what forks take over, how signals and ends go both ways, who is refused."""

import contextlib
import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from tests.core.cli.keeper.conftest import has_ended

from hotshoe.cli.keeper import forking, place
from hotshoe.cli.keeper.forking import ImportKeeper
from hotshoe.errors import ConfigError

TALK = """
import resource
print(sys.argv[3], os.getcwd(), os.environ["TERM"], os.environ["SET_BY_AN_IMPORT"], input())
print(oct(os.umask(0)), *resource.getrlimit(resource.RLIMIT_CORE), random.random(), flush=True)
print("says", file=sys.stderr)
sys.exit(3)
"""
WAIT = """
def end(number, frame):
    os.write(1, b"heard %d" % number)
    os._exit(5)
signal.signal(signal.SIGTERM, end)
os.write(1, b"%d\\n" % os.getpid())
while True:
    signal.pause()
"""
SMALL = "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.umask(0o31)\n"


def test_a_fork_becomes_what_was_asked_for(keep, ask, tmp_path: Path) -> None:
    keep()
    drawn = set()
    for word in ("one", "two"):
        environment = {**os.environ, "TERM": word}  # noqa: TID251
        client = ask(TALK, word, prelude=SMALL, cwd=tmp_path, env=environment)
        first, second, third, *rest = client.communicate("typed\n", timeout=60)[0].splitlines()
        assert first == f"{word} {tmp_path} {word} 1 typed"
        *taken, number = second.split()
        assert taken == ["0o31", "0", "0"]
        drawn.add(number)
        assert (third, rest, client.returncode) == ("says", [], 3)
    assert len(drawn) == 2


def test_a_signal_reaches_the_command(keep, ask) -> None:
    keep()
    client = ask(WAIT)
    assert int(client.stdout.readline()) != client.pid
    client.terminate()
    assert client.communicate(timeout=60)[0] == f"heard {signal.SIGTERM.value}"
    assert client.returncode == 5


def test_a_client_ends_by_the_signal_that_ended_the_command(keep, ask) -> None:
    keep()
    client = ask("os.kill(os.getpid(), signal.SIGKILL)")
    assert client.wait(60) == -signal.SIGKILL


def test_an_ignored_signal_stays_ignored(keep, ask) -> None:
    keep()
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    client = ask("print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)", prelude=ignoring)
    assert client.communicate(timeout=60)[0] == "True\n"


def test_a_command_ends_with_its_client(keep, ask) -> None:
    keep()
    client = ask(WAIT)
    pid = int(client.stdout.readline())
    client.kill()
    assert has_ended(pid)


def test_a_command_outlives_its_keeper(keep, ask, folder: Path) -> None:
    keeper = keep()
    client = ask(WAIT)
    client.stdout.readline()
    keeper.terminate()
    assert keeper.communicate(timeout=60)[0] == "closed\n"
    assert not list(folder.iterdir())
    assert client.poll() is None
    client.terminate()
    assert client.wait(60) == 5


def test_a_keeper_that_does_not_answer_holds_nobody_up(keep, ask) -> None:
    keeper = keep()
    keeper.send_signal(signal.SIGSTOP)
    client = ask("print('forked')", prelude="client.ANSWER_S = 0.1\n")
    assert client.communicate(timeout=60)[0] == "here\n"
    keeper.send_signal(signal.SIGCONT)  # what it hears now, nobody wants any more
    assert ask("print('again')").communicate(timeout=60)[0] == "again\n"
    keeper.terminate()
    assert keeper.communicate(timeout=60)[0].endswith("closed\n")


def test_changed_files_are_not_used(keep, ask, tmp_path: Path) -> None:
    (tmp_path / "module_of_a_test.py").write_text("")
    keeper = keep(prelude=f"sys.path.append({str(tmp_path)!r}); import module_of_a_test\n")
    same = f"sys.path.append({str(tmp_path)!r})\n"
    assert ask("print('forked')", prelude=same).communicate(timeout=60)[0] == "forked\n"
    (tmp_path / "module_of_a_test.py").write_text("more = 1")
    assert ask("print('forked')", prelude=same).communicate(timeout=60)[0] == "here\n"
    assert "have changed" in keeper.stdout.readline()


def test_others_are_refused_and_strange_messages_harm_nobody(keep, ask, folder: Path) -> None:
    keeper = keep()
    [path] = folder.iterdir()
    for message in (b"", b"\xff" * 64, b"\0\0\0\2{}"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(path))
            stranger.sendall(message)
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
    assert ask("print('forked')").communicate(timeout=60)[0] == "forked\n"
    keeper.kill()
    keep(prelude="place.is_own = lambda connection: False\n")
    assert not path.exists(), "the socket of one that was killed is removed"
    assert ask("print('forked')").communicate(timeout=60)[0] == "here\n"


def test_a_folder_that_others_can_enter_is_refused(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(place, "folder", lambda: folder)
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="nobody else can enter"):
        ImportKeeper("name", {})
    folder.rmdir()
    folder.write_text("no folder")
    with pytest.raises(ConfigError, match="no socket can be made"):
        ImportKeeper("name", {})


def test_a_system_that_lets_nothing_start_is_survived(folder: Path, monkeypatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    def say(line: str) -> None:
        said.append(line)
        end.set()

    said: list[str] = []
    end = threading.Event()
    monkeypatch.setattr(place, "folder", lambda: folder)
    monkeypatch.setattr(forking.os, "fork", refuse)
    with contextlib.closing(ImportKeeper("name", dict(os.environ))) as keeper:  # noqa: TID251
        [path] = folder.iterdir()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            assert keeper.serve(end, say) is None
            assert client.recv(1) == b""
    assert said == ["nothing can be forked: no more processes"]
    assert not path.exists()
