"""The waiting queue agrees with a sorted list and forgets what is removed."""

import gc
import random
import weakref

from hotshoe.scheduler import Request
from hotshoe.scheduler.queue import WaitingQueue
from hotshoe.types import SamplingParams

PARAMS = SamplingParams()


def make_request(priority: int, arrival: int) -> Request:
    request = Request(f"{priority}/{arrival}", [1], PARAMS)
    request.order = (priority, arrival)
    return request


def test_random_use_agrees_with_a_sorted_list() -> None:
    rng = random.Random()
    queue, waiting, taken = WaitingQueue(), [], []
    for arrival in range(3000):
        action = rng.randrange(4)
        if action == 0 and waiting:
            request = rng.choice(waiting)
            queue.remove(request)
            waiting.remove(request)
        elif action == 1 and waiting:
            taken.append(waiting.pop(0))
            queue.remove(taken[-1])
        elif action == 2 and taken:  # As after a preemption: an old key returns.
            waiting.append(taken.pop(rng.randrange(len(taken))))
            queue.push(waiting[-1])
        else:
            waiting.append(make_request(rng.randrange(-3, 3), arrival))
            queue.push(waiting[-1])
        waiting.sort(key=lambda request: request.order)
        assert len(queue) == len(waiting)
        assert queue.first() is (waiting[0] if waiting else None)


def test_removed_requests_leave_neither_memory_nor_keys_behind() -> None:
    queue = WaitingQueue()
    queue.push(make_request(-1, 0))  # Stays first, so the keys behind it never surface.
    gc.disable()
    try:
        for arrival in range(1, 2000):
            request = make_request(0, arrival)
            queue.push(request)
            queue.remove(request)
            alive = weakref.ref(request)
            del request
            assert alive() is None
    finally:
        gc.enable()
    assert len(queue.heap) < 50
