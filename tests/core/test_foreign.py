"""Foreign code may raise anything; its owner is named, and the user is never held up."""

import contextlib
import gc
import signal
import weakref

import pytest

from hotshoe.errors import PluginError, UserError
from hotshoe.foreign import ForeignError, cause_of, ending, foreign


class Panic(BaseException):
    """As libraries raise it that are written in other languages."""


def blame(error: BaseException) -> PluginError:
    return PluginError(f"mine: {cause_of(error)}")


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(0), Panic("a\n  b")])
def test_whatever_is_raised_names_the_owner(error: BaseException) -> None:
    with pytest.raises(PluginError) as caught, foreign(blame):
        raise error
    assert str(caught.value) == f"mine: {cause_of(error)}"
    assert caught.value.__cause__ is error


def test_without_an_owner_the_cause_is_told_on_one_line() -> None:
    with pytest.raises(ForeignError, match=r"^Panic: a b$"), foreign():
        raise Panic("a\n  b")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("theirs")])
def test_the_user_and_what_is_meant_for_the_caller_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, foreign(blame, (UserError,)):
        raise error
    assert caught.value is error


def test_an_owner_may_let_an_exception_go_on() -> None:
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError) as caught, foreign(lambda error: error):
        raise error
    assert caught.value is error and error.__cause__ is None


def test_nothing_holds_what_the_code_held_when_it_failed() -> None:
    class Held:
        pass

    def fail() -> weakref.ref[Held]:
        held = Held()
        seen.append(weakref.ref(held))
        raise ZeroDivisionError

    seen: list[weakref.ref[Held]] = []
    gc.disable()
    try:
        with contextlib.suppress(ForeignError), foreign():
            fail()
        assert seen[0]() is None
    finally:
        gc.enable()


def test_one_guard_serves_functions_and_many_blocks() -> None:
    guard = foreign(blame)

    @guard
    def double(number: int) -> int:
        with guard:
            return 2 * number

    assert double(2) == 4
    with pytest.raises(PluginError, match="mine: TypeError"):
        double(object())  # type: ignore[operator]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "exit code 0"),
        (1, "exit code 1"),
        (-9, "killed by SIGKILL"),
        (
            -signal.SIGBUS,
            "killed by SIGBUS, perhaps because a file that it reads was cut short or overwritten",
        ),
        (-signal.SIGRTMIN - 5, f"killed by signal {signal.SIGRTMIN + 5}"),
    ],
)
def test_every_ending_has_words(code: int, said: str) -> None:
    assert ending(code) == said
