"""Adapters of requests that wait: the next ones, by the order of their requests."""

import random

from hotshoe import LLM
from hotshoe.engine.core import engine_core
from hotshoe.engine.core.lookahead import WALK, next_adapters
from hotshoe.scheduler.queue import WaitingQueue
from hotshoe.scheduler.request import Request
from hotshoe.types import SamplingParams


def waiting(number: int, adapter: str | None) -> Request:
    request = Request(str(number), [1], SamplingParams(adapter=adapter))
    request.order = (0, number)
    return request


def test_the_next_adapters_come_in_the_order_of_their_requests() -> None:
    rng = random.Random(7)
    for _ in range(50):
        queue, requests = WaitingQueue(), []
        for number in rng.sample(range(1000), rng.randrange(0, 12)):
            adapter = rng.choice(["a", "b", "c", "d", "e", None])
            requests.append(waiting(number, adapter))
            queue.push(requests[-1])
        for request in rng.sample(requests, len(requests) // 3):
            queue.remove(request)
            requests.remove(request)
        requests.sort(key=lambda request: request.order)
        names = list(dict.fromkeys(r.params.adapter for r in requests if r.params.adapter))
        count = rng.randrange(1, 5)
        assert next_adapters(queue, count) == names[:count]


def test_a_long_queue_is_not_read_to_its_end() -> None:
    queue = WaitingQueue()
    for number in range(100):
        queue.push(waiting(number, None if number < WALK + 2 else "a"))
    assert next_adapters(queue, 1) == []


def test_nobody_looks_where_steps_run_on_the_host(monkeypatch) -> None:
    def looked(*args: object) -> None:
        raise AssertionError("adapters come to no place beside a step")

    monkeypatch.setattr(engine_core, "next_adapters", looked)
    with LLM("demo", platform="cpu", load_format="dummy", enable_lora=True) as llm:
        [output] = llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2
