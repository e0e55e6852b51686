"""The requests that wait, first to be served first.

Two policies differ only in the sort key that the scheduler gives each request (`Request.order`);
a third one is a queue of its own, given to the scheduler. Called by the scheduler alone.
"""

import heapq

from hotshoe.scheduler.request import Request


class WaitingQueue:
    """A priority queue by `Request.order` with removal from the middle.

    Removing a request drops it at once but leaves its key in the heap, to be skipped when it
    surfaces; the heap is rebuilt when such keys outnumber the live ones. All operations are
    O(log n), amortized.

    Attributes:
        requests: Those in it, by order. `heap` has their orders, and more.
        num_tokens: Known ones of all of them.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[int, int], Request] = {}
        self.heap: list[tuple[int, int]] = []
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self.requests)

    def push(self, request: Request) -> None:
        """Add a request."""
        assert request.order not in self.requests
        self.requests[request.order] = request
        heapq.heappush(self.heap, request.order)
        self.num_tokens += len(request.token_ids)

    def first(self) -> Request | None:
        """Return the request to be served next, leaving it in the queue."""
        while self.heap:
            request = self.requests.get(self.heap[0])
            if request is not None:
                return request
            heapq.heappop(self.heap)
        return None

    def remove(self, request: Request) -> None:
        """Take out a request, be it first or not."""
        del self.requests[request.order]
        self.num_tokens -= len(request.token_ids)
        if len(self.heap) > 2 * len(self.requests) + 16:
            self.heap = sorted(self.requests)

    def grow(self, request: Request, count: int) -> None:
        """Count tokens that were appended to a request in it, or are about to be."""
        self.num_tokens += count

    def start(self, request: Request) -> None:
        """Take out a request that runs from now on."""
        self.remove(request)

    def stop(self, request: Request) -> None:
        """Hear that a request runs no longer."""
