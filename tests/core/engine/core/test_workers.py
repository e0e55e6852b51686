"""Workers come up, sleep, wake and are closed; who steps them is no affair of theirs."""

from pathlib import Path

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.core.workers import Workers
from hotshoe.engine.start.setup import prepare
from hotshoe.errors import MemoryLimitError, RequestError


@pytest.fixture
def workers(model_dir: Path, plugins) -> Workers:
    found = Workers(prepare(EngineConfig(model=str(model_dir), platform="null"), plugins))
    assert found.main is None
    found.bring_up()
    return found


def test_a_cache_goes_once(workers: Workers) -> None:
    first, num_blocks = workers.main, workers.num_blocks
    assert first is not None and sum(num_blocks) > 0 and workers.sleep_level is None
    assert workers.fall_asleep(2) and workers.main is None and workers.sleep_level == 2
    assert not workers.fall_asleep(2)
    workers.wake(workers.tags_to_wake(["weights"]))
    assert workers.sleep_level == 0 and workers.main not in (None, first)
    workers.wake(workers.tags_to_wake(None))
    assert workers.sleep_level is None and workers.num_blocks == num_blocks


def test_what_waits_keeps_its_cache(workers: Workers) -> None:
    first = workers.main
    assert not workers.fall_asleep(0) and workers.main is first
    assert workers.tags_to_wake(None) == {"scheduling"}


def test_a_refused_sleep_changes_nothing(workers: Workers) -> None:
    with pytest.raises(RequestError, match="level 1 is not offered"):
        workers.check_sleep(1, "keep")
    assert not workers.asleep and workers.main is not None


def test_a_wake_without_room_closes_what_it_made(workers: Workers, monkeypatch) -> None:
    made = type(workers.main)
    closed: list[object] = []

    def full(worker: object, num_blocks: object) -> None:
        raise MemoryLimitError("1 GiB is missing")

    workers.fall_asleep(2)
    with monkeypatch.context() as patch:
        patch.setattr(made, "allocate_cache", full)
        patch.setattr(made, "close", lambda worker: closed.append(worker))  # noqa: PLW0108
        for _ in range(2):
            with pytest.raises(MemoryLimitError):
                workers.wake(workers.tags_to_wake(None))
            assert workers.main is None and workers.sleep_level == 2
    assert len(closed) == 2
    workers.wake(workers.tags_to_wake(None))
    assert workers.sleep_level is None


def test_what_sleeps_records_no_steps(workers: Workers) -> None:
    workers.fall_asleep(2)
    for call in (lambda: workers.start_profile("x"), workers.stop_profile):
        with pytest.raises(RequestError, match="cannot record them, or sleeps"):
            call()


def test_startup_and_memory_have_names(workers: Workers) -> None:
    assert "allocate cache" in workers.startup and workers.startup["allocate cache"] >= 0
    assert set(workers.memory) == {"weights", "kv_cache"}
