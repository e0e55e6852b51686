"""The exception tree is the one that its docstring draws."""

import inspect
import re
import sys
import tempfile

import pytest

from hotshoe import errors
from hotshoe.errors import ConfigError, HotshoeError, RequestError, lack_of


def drawn() -> dict[str, str]:
    """Read the drawing: class name to the name of its parent."""
    stack: list[str] = []
    parents = {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            stack[depth:] = [match[2]]
            parents[match[2]] = stack[depth - 1] if depth else "Exception"
    return parents


def test_the_drawing_is_true() -> None:
    classes = {
        name: value.__bases__[0].__name__
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, HotshoeError)
    }
    assert drawn() == classes
    assert len(classes) >= 10


def test_bad_values_are_value_errors_too() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(RequestError, ValueError)


def test_a_request_error_names_its_field() -> None:
    assert RequestError("bad", "top_p").field == "top_p"
    assert RequestError("bad").field is None


def test_a_machine_without_temporary_folder_is_named(monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere/at/all"])
    with pytest.raises(FileNotFoundError, match="No usable") as caught:
        tempfile.mkdtemp()
    assert "name it in TMPDIR" in str(lack_of(caught.value))


def test_what_a_machine_lacks_is_named() -> None:
    assert "ulimit -u" in str(lack_of(RuntimeError("can't start new thread")))
    denied = PermissionError(13, "Permission denied", sys.executable)
    assert f"run by {sys.executable}, which this user may not run" in str(lack_of(denied))


def test_other_errors_lack_nothing() -> None:
    others = [
        RuntimeError("no"),
        PermissionError(13, "Permission denied", "/other"),
        OSError(11, "x"),
    ]
    assert [lack_of(error) for error in others] == [None] * 3
