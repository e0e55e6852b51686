"""Mutants: references that overlook something. The kit has to find every one of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest


@pytest.fixture(scope="session")
def blind(reference) -> Callable[..., Any]:
    """Build a reference that takes fields of its specification for something else."""

    def blind(slot: str, **fields: Any) -> Any:
        def build(spec: Any, facts: Any) -> Any:
            return reference(slot, replace(spec, **fields))

        return build

    return blind


@pytest.fixture(scope="session")
def wrapped(reference) -> Callable[..., Any]:
    """Build a reference whose call is changed: `change(op, spec, *arguments)`."""

    def wrapped(slot: str, change: Any) -> Any:
        def build(spec: Any, facts: Any) -> Any:
            op = reference(slot, spec)

            class Changed:
                layout = getattr(op, "layout", None)
                load = getattr(op, "load", None)
                nbytes = getattr(op, "nbytes", None)

                def __call__(self, *arguments: Any) -> Any:
                    return change(op, spec, *arguments)

            return Changed()

        return build

    return wrapped
