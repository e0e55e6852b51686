"""Sleep and new weights: what an engine asks of its worker, and what it refuses.

Functions over a worker; `EngineCore` keeps the state, and sees to it that no step is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from hotshoe.errors import MemoryLimitError, RequestError
from hotshoe.executor import WeightsWorker, Worker

if TYPE_CHECKING:
    from hotshoe.loader.sources import Weights

#: What each sleep level puts to sleep; the names are the tags of `wake_up`.
SLEEP_LEVELS = {
    0: ("scheduling",),
    1: ("weights", "kv_cache"),
    2: ("weights", "kv_cache"),
}
TAGS = ("scheduling", "weights", "kv_cache")
SLEEP_MODES = ("keep", "wait", "abort")


def check_sleep(level: int, mode: str, worker: Worker | None) -> None:
    """Refuse a sleep that cannot be, before anything is done for it.

    Raises:
        RequestError: Level or mode are unknown, or the worker cannot move its weights.
    """
    if level not in tuple(SLEEP_LEVELS):  # of which a caller's list would be no key
        known = ", ".join(map(str, SLEEP_LEVELS))
        raise RequestError(f"sleep level {level} is unknown; use one of {known}", "level")
    if mode not in SLEEP_MODES:
        raise RequestError(f"mode must be one of {', '.join(SLEEP_MODES)}, not {mode!r}", "mode")
    if level == 1 and worker is not None and not isinstance(worker, WeightsWorker):
        raise RequestError(
            "sleep level 1 is not offered: what computes steps here cannot move its weights; "
            "use 0 or 2",
            "level",
        )


def sleep_level(asleep: Collection[str], worker: Worker | None) -> int | None:
    """Return the level of sleep, None for an engine that is awake.

    One whose weights have been woken up, and its cache has not, has level 0: it waits.
    """
    if not asleep:
        return None
    if "weights" not in asleep:
        return 0
    return 2 if worker is None else 1


def fall_asleep(worker: Worker, level: int) -> Worker | None:
    """Give memory back; None where nothing is left of the worker.

    Raises:
        RequestError: The weights cannot be moved; the worker is as it was.
    """
    if level == 1:
        assert isinstance(worker, WeightsWorker)
        worker.offload()
        return worker
    worker.close()
    return None


def tags_to_wake(tags: Iterable[str] | None, asleep: set[str]) -> set[str]:
    """Return which sleeping parts are meant; none where nothing sleeps.

    Raises:
        RequestError: Tags are no list, one is unknown, or the cache would come before the weights.
    """
    if isinstance(tags, str) or not isinstance(tags, Iterable | None):
        raise RequestError(f'tags come as a list, such as ["weights"], not as {tags!r}', "tags")
    wanted = list(TAGS if tags is None else tags)
    for tag in wanted:
        if tag not in TAGS:
            raise RequestError(f"unknown tag {tag}; known are {', '.join(TAGS)}", "tags")
    missing = asleep.intersection(wanted)
    if "kv_cache" in missing and "weights" in asleep - missing:
        raise RequestError("wake up the weights before or with the kv_cache", "tags")
    return missing


def wake(
    worker: Worker | None,
    missing: set[str],
    create: Callable[[], Worker],
    num_blocks: Sequence[int],
    load: Callable[[Worker], None],
) -> Worker | None:
    """Take memory back; a worker that was closed is made anew, reads the checkpoint, and `load`
    gives it the rest.

    Raises:
        MemoryLimitError: There is too little; the worker sleeps as before.
        CheckpointError: Files cannot be read; the worker sleeps as before.
    """
    woken = worker
    try:
        if "weights" in missing:
            if woken is None:
                woken = create()
                woken.load()
                load(woken)
            else:
                assert isinstance(woken, WeightsWorker)
                woken.restore()
        if "kv_cache" in missing:
            assert woken is not None
            woken.allocate_cache(num_blocks)
    except BaseException as error:
        if woken is not worker and woken is not None:
            woken.close()
        lacks = isinstance(error, MemoryLimitError) and "weights" in missing
        if lacks and woken is worker and isinstance(woken, WeightsWorker):
            woken.offload()
        raise
    return woken


def replace_weights(worker: Worker | None, asleep: set[str], weights: Weights) -> None:
    """Write new weights over the old ones.

    Raises:
        RequestError: The weights sleep, or the worker cannot replace them.
        CheckpointError: They do not fit; nothing was written.
    """
    if "weights" in asleep:
        raise RequestError(
            "the weights are asleep; wake them up first, with wake_up and the tag weights"
        )
    if not isinstance(worker, WeightsWorker):
        raise RequestError("what computes steps here cannot replace its weights")
    worker.update_weights(weights)
