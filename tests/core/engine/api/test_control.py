"""Each call of an engine is a message whose verb the loop knows."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from hotshoe.engine.api.control import Control, listed
from hotshoe.engine.core.engine_core import EngineCore
from hotshoe.engine.core.workers import Workers
from hotshoe.engine.transport.calls import Calls

MADE = [
    ("abort_everywhere", ("a",), {"request_ids": ["a"]}),
    ("pause", (), {"mode": "abort", "clear_cache": True}),
    ("resume", (), {}),
    ("sleep", (2,), {"level": 2, "mode": "keep"}),
    ("wake_up", (("weights",),), {"tags": ["weights"]}),
    ("load_adapter", ("a", "/b"), {"name": "a", "path": "/b"}),
    ("unload_adapter", ("a",), {"name": "a"}),
    ("reset_prefix_cache", (), {"reset_running": False}),
    ("start_profile", ("/b",), {"folder": "/b"}),
    ("stop_profile", (), {}),
]


class Noting(Control):
    """Notes what is asked for."""

    async def _call(self, verb: str, **arguments: Any) -> Any:
        self.asked = verb, arguments


@pytest.mark.parametrize(("verb", "given", "arguments"), MADE, ids=lambda value: str(value)[:20])
def test_a_call_names_a_verb_that_the_loop_knows(
    verb: str, given: tuple[Any, ...], arguments: dict[str, Any]
) -> None:
    control = Noting()
    asyncio.run(getattr(control, verb)(*given))
    assert control.asked == (verb, arguments)
    calls = Calls(SimpleNamespace(core=Mock(EngineCore, workers=Mock(Workers, adapters=Mock()))))
    assert verb in {*calls._verbs, *calls._waiting_verbs}


def test_one_id_is_not_taken_for_its_letters() -> None:
    assert listed("ab") == ["ab"] and listed(("a", "b")) == ["a", "b"]
