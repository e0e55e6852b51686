"""The exception tree is the one that its docstring draws."""

import inspect
import re

from hotshoe import errors
from hotshoe.errors import ConfigError, HotshoeError, RequestError


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
