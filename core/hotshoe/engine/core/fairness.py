"""Fair shares of turns and of the queue: the tenant that was served least is served next.

The queue of `scheduling_policy` "fair". What a tenant was served are the tokens computed for it,
prompts and answers alike, without those that the prefix cache gave. Within a tenant, requests are
started in order of arrival, so one tenant alone is served as by "fcfs". No work is done for a
token: what running requests have computed is summed up when one of several tenants is chosen.

While two tenants wait all the time, what they are served differs by no more than twice the tokens
of the requests that run at once. A tenant that comes back starts level with the one that was served
least of those that wait, so it neither saves turns nor gets rid of what it had beforehand.

Source: start-time fair queuing (Goyal, Vin, Cheng 1996), with counted tokens in place of estimated
ones, as Sheng et al. 2024 count them.
"""

import heapq
import itertools

from hotshoe.scheduler import Request
from hotshoe.scheduler.queue import WaitingQueue

#: Tenants without requests that are remembered.
NUM_REMEMBERED = 1024


class _Tenant:
    """One tenant's requests.

    Attributes:
        settled: What it was served beside the tokens of its running requests; raised when it
            comes back.
        listed: It has an entry in the heap.
    """

    def __init__(self, settled: int) -> None:
        self.waiting = WaitingQueue()
        self.running: set[Request] = set()
        self.settled = settled
        self.listed = False

    @property
    def served(self) -> int:
        return self.settled + sum(request.num_computed_tokens for request in self.running)


class FairQueue(WaitingQueue):
    """A waiting queue of queues, one for each tenant.

    The heap holds every tenant that waits, by what it was served when that was last looked up.
    Counts only grow, so the first entry that is up to date is the least. Requests that run are
    ordered by their start: the last one that started is preempted first, whoever's it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tenants: dict[str | None, _Tenant] = {}
        self._turns: list[tuple[int, int, _Tenant]] = []
        self._numbers = itertools.count()
        self._starts = itertools.count()
        self._clock = 0  # the least that a tenant was served that waits or waited last
        self._most_tenants = 2 * NUM_REMEMBERED

    def share(self, tenant: str | None, num_tokens: int, room: float) -> float:
        """Return how many sequences of so many tokens a tenant may add where all may add `room`.

        What it has here may be as much as it leaves free, so that there is room for others.
        """
        found = self._tenants.get(tenant)
        if found is None or tenant is None:
            return room
        held = max(len(found.waiting), found.waiting.num_tokens / max(num_tokens, 1))
        return room - held

    def push(self, request: Request) -> None:
        """Add a request."""
        tenant = self._tenants.get(request.tenant) or self._open(request.tenant)
        if not tenant.waiting:
            self._next_tenant()  # brings the clock up to date
            tenant.settled += max(0, self._clock - tenant.served)
            if not tenant.listed:
                tenant.listed = True
                heapq.heappush(self._turns, (tenant.served, next(self._numbers), tenant))
        tenant.waiting.push(request)
        super().push(request)

    def first(self) -> Request | None:
        """Return the request to be served next, leaving it in the queue."""
        alone = len(self._turns) == 1
        tenant = self._turns[0][2] if alone else self._next_tenant()
        return None if tenant is None else tenant.waiting.first()

    def remove(self, request: Request) -> None:
        """Take out a request, be it first or not."""
        self._tenants[request.tenant].waiting.remove(request)
        super().remove(request)

    def grow(self, request: Request, count: int) -> None:
        """Count tokens that were appended to a request in it, or are about to be."""
        super().grow(request, count)
        self._tenants[request.tenant].waiting.grow(request, count)

    def start(self, request: Request) -> None:
        """Take out a request that runs from now on; its cached tokens are known, others not yet."""
        self.remove(request)
        tenant = self._tenants[request.tenant]
        self._clock = max(self._clock, tenant.served)
        # What was computed before a preemption is counted once, and what was cached never.
        tenant.settled -= max(request.num_computed_tokens, request.num_cached_tokens)
        tenant.running.add(request)
        request.order = (next(self._starts), request.order[1])

    def stop(self, request: Request) -> None:
        """Settle what was computed for a request that runs no longer."""
        tenant = self._tenants[request.tenant]
        tenant.running.remove(request)
        tenant.settled += request.num_computed_tokens
        request.order = (0, request.order[1])

    def _next_tenant(self) -> _Tenant | None:
        """Return whose turn it is."""
        turns = self._turns
        while turns:
            known, number, tenant = turns[0]
            if not tenant.waiting:
                tenant.listed = False
                heapq.heappop(turns)
                continue
            served = tenant.served
            if served <= known:
                self._clock = max(self._clock, served)
                return tenant
            heapq.heapreplace(turns, (served, number, tenant))
        return None

    def _open(self, name: str | None) -> _Tenant:
        """Return a new tenant; of those that have nothing here, forget who was served least."""
        if len(self._tenants) >= self._most_tenants:
            idle = [key for key, it in self._tenants.items() if not it.waiting and not it.running]
            idle.sort(key=lambda key: self._tenants[key].settled)
            for key in idle[:-NUM_REMEMBERED]:
                del self._tenants[key]
            self._most_tenants = 2 * max(len(self._tenants), NUM_REMEMBERED)
        tenant = self._tenants[name] = _Tenant(self._clock)
        return tenant
