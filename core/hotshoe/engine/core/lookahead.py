"""Which adapters the requests that wait will need next. Called by the engine core."""

import heapq

from hotshoe.scheduler.queue import WaitingQueue

#: Requests that are looked at, beside twice as many as adapters are wanted.
WALK = 16


def next_adapters(queue: WaitingQueue, count: int) -> list[str]:
    """Return up to `count` adapters of waiting requests, by `Request.order`.

    A fair queue may serve another request first. Few requests are looked at, so that a long queue
    makes no step longer.
    """
    heap, names = queue.heap, dict[str, None]()
    least = [(heap[0], 0)] if heap else []  # those below which all others are
    for _ in range(2 * count + WALK):
        if not least or len(names) == count:
            break
        order, at = heapq.heappop(least)
        for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
            heapq.heappush(least, (heap[below], below))
        request = queue.requests.get(order)
        if request is not None and request.params.adapter is not None:
            names[request.params.adapter] = None
    return list(names)
