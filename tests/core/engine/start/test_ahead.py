"""Which processes are started before they are wanted."""

from contextlib import nullcontext

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.start import ahead
from hotshoe.engine.wire.children import ENGINE_COMMAND, RANK_COMMAND


@pytest.fixture
def started(monkeypatch) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []

    def note(command: tuple[str, ...], imports: tuple[str, ...], number: int = 1) -> nullcontext:
        assert "hotshoe.runner.worker" in imports
        found.append((command[-1], number))
        return nullcontext()

    monkeypatch.setattr(ahead, "started_ahead", note)
    return found


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({}, 0),
        ({"tensor_parallel_size": 2}, 2),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}, 2),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "nnodes": 2}, 4),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}, 0),
        ({"tensor_parallel_size": 2, "platform": "null"}, 0),
    ],
)
def test_ranks_of_this_host(options: dict[str, object], number: int, started) -> None:
    with ahead.ranks_ahead(EngineConfig(**options)):
        assert started == [(RANK_COMMAND[-1], number)] * bool(number)


@pytest.mark.parametrize(("platform", "number"), [("auto", 1), ("null", 0)])
def test_an_engine(platform: str, number: int, started) -> None:
    with ahead.engine_ahead(EngineConfig(platform=platform)):
        assert started == [(ENGINE_COMMAND[-1], 1)] * number
