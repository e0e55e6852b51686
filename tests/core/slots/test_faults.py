"""Whoever raises is found, whatever form an operation has; nobody else is blamed."""

import math
from collections.abc import Callable
from functools import partial

import pytest

from hotshoe.slots.faults import Owners


def at_once(x):
    raise ZeroDivisionError


def helper():
    raise ZeroDivisionError


def through_a_helper(x):
    helper()


class Called:
    def __call__(self, x):
        helper()


class Method:
    def run(self, x):
        helper()


class Several:
    """An operation of several methods, such as a communicator."""

    def record(self, function):
        return function()

    def fail(self, x):
        helper()


class Layer:
    """Calls as layers do: from an attribute, in a method."""

    def __init__(self, operation: Callable, other: Callable = abs) -> None:
        self._op = operation
        self._other = other

    def __call__(self, x):
        x = self._other(x)
        return self._op(x)


def raised_by(call: Callable[[], object]) -> BaseException:
    with pytest.raises((ArithmeticError, TypeError, ValueError)) as caught:
        call()
    return caught.value


def closure() -> Callable:
    return lambda x: helper()


SEVERAL = Several()


@pytest.mark.parametrize(
    ("noted", "operation"),
    [
        (at_once, at_once),
        (through_a_helper, through_a_helper),
        (SEVERAL, SEVERAL.fail),
        *[(x, x) for x in (closure(), Called(), Method().run, math.sqrt, partial(math.log, -1))],
    ],
    ids="function helper several closure object method compiled partial".split(),
)
def test_a_candidate_is_known_by_its_operation(noted: object, operation: Callable) -> None:
    owners = Owners()
    owners.note(noted, ("linear", "mine"))
    other = Called()  # held, or another object may get its id
    owners.note(other, ("linear", "other"))
    owners.note(abs, ("linear", "before"))
    error = raised_by(lambda: Layer(operation, lambda x: -abs(x))(1))
    assert owners.of(error) == [("linear", "mine")]


def test_a_call_with_other_arguments_than_it_takes_is_its_own_fault() -> None:
    owners = Owners()
    owners.note(helper, ("linear", "mine"))
    assert owners.of(raised_by(lambda: Layer(helper)(1))) == [("linear", "mine")]


def test_who_is_called_by_another_is_meant() -> None:
    owners = Owners()
    owners.note(SEVERAL, ("graph", "recorder"))
    owners.note(at_once, ("linear", "mine"))
    error = raised_by(lambda: SEVERAL.record(lambda: Layer(at_once)(1)))
    assert owners.of(error) == [("linear", "mine")]


def test_who_cannot_be_told_apart_is_named_together() -> None:
    owners = Owners()
    owners.note(closure(), ("linear", "mine"))
    owners.note(closure(), ("embedding", "mine"))
    error = raised_by(lambda: Layer(closure())(1))
    assert owners.of(error) == [("linear", "mine"), ("embedding", "mine")]


def test_nobody_is_blamed_for_what_others_do() -> None:
    owners = Owners()
    assert owners.of(raised_by(helper)) == []
    owners.note(at_once, ("linear", "mine"))
    owners.note(abs, ("linear", "before"))
    assert owners.of(raised_by(lambda: Layer(through_a_helper)(1))) == []
    assert owners.of(raised_by(lambda: Layer(at_once, lambda x: 1 / 0)(1))) == []
    assert owners.of(ValueError("never raised")) == []


def test_who_gets_the_place_of_an_operation_that_is_gone_is_none() -> None:
    """Else it would be asked for results that it never promised, and no engine would start."""
    owners = Owners()
    for _ in range(100):
        operation = closure()
        owners.note(operation, ("slot", "candidate"), "spec")
        assert owners.built(operation) == [(("slot", "candidate"), "spec")]
        place = id(operation)
        del operation
        other = closure()
        if id(other) == place:
            break
    assert id(other) == place, "memory is used again"
    assert owners.built(other) == []
