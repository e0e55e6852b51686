"""The store of responses: bounded by bytes, oldest unused first, tenants apart."""

import asyncio
import json
from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from hotshoe_server.store import ResponseStore, StoredResponse


def entry(size: int, tenant: str | None = None) -> StoredResponse:
    return StoredResponse(tenant, b"a" * (size // 2), b"m" * (size - size // 2))


def do(store: ResponseStore, verb: str, *arguments: object) -> object:
    return asyncio.run(getattr(store, verb)(*arguments))


def test_the_oldest_unused_goes_first() -> None:
    store = ResponseStore(30)
    for name in "abc":
        do(store, "put", name, entry(10))
    assert do(store, "get", "a", None)
    do(store, "put", "d", entry(10))
    assert [name for name in "abcd" if do(store, "get", name, None)] == ["a", "c", "d"]


def test_an_entry_above_the_limit_is_not_kept() -> None:
    store = ResponseStore(10)
    do(store, "put", "a", entry(5))
    do(store, "put", "b", entry(11))
    assert do(store, "get", "a", None) and not do(store, "get", "b", None)


def test_tenants_are_kept_apart() -> None:
    store = ResponseStore(100)
    do(store, "put", "a", entry(5, "x"))
    assert do(store, "get", "a", "y") is None and do(store, "get", "a", None) is None
    assert not do(store, "delete", "a", "y")
    assert do(store, "delete", "a", "x") and not do(store, "delete", "a", "x")
    assert store.num_bytes == 0


names = st.sampled_from("abcdef")
steps = st.lists(
    st.tuples(st.sampled_from(["put", "get", "delete"]), names, st.integers(0, 12)), max_size=60
)


@given(steps)
def test_it_behaves_like_a_bounded_ordered_dict(steps: list[tuple[str, str, int]]) -> None:
    async def run() -> None:
        store, model = ResponseStore(20), OrderedDict[str, int]()
        for verb, name, size in steps:
            if verb == "put":
                model.pop(name, None)
                if size <= 20:
                    model[name] = size
                while sum(model.values()) > 20:
                    model.popitem(last=False)
                await store.put(name, entry(size))
            elif verb == "get":
                assert (await store.get(name, None) is not None) == (name in model)
                if name in model:
                    model.move_to_end(name)
            else:
                assert await store.delete(name, None) == (model.pop(name, None) is not None)
            assert len(store) == len(model)
            assert store.num_bytes == sum(model.values()) <= 20

    asyncio.run(run())


def test_events_are_kept_and_counted() -> None:
    store = ResponseStore(100)
    running = StoredResponse(None, b"{}", b"[]", running=True, followed=True)
    assert do(store, "put", "a", running)
    assert do(store, "extend", "a", None, [b"12345", b"678"])
    assert store.num_bytes == 12
    found = do(store, "events", "a", None, 1)
    assert (found.events, found.total, found.running) == ([b"678"], 2, True)
    assert do(store, "events", "a", "other", 0) is None
    assert not do(store, "extend", "a", "other", [b"x"]) and not do(store, "extend", "b", None, [])
    assert do(store, "extend", "a", None, [b"9"], StoredResponse(None, b"{...}", b"[]"))
    found = do(store, "events", "a", None, 0)
    assert (len(found.events), found.running, store.num_bytes) == (3, False, 16)
    assert do(store, "delete", "a", None) and store.num_bytes == 0


def test_what_is_still_being_made_goes_last() -> None:
    store = ResponseStore(30)
    do(store, "put", "a", StoredResponse(None, b"a" * 10, b"", running=True))
    for name in "bc":
        do(store, "put", name, entry(10))
    assert do(store, "extend", "a", None, [b"x" * 10])
    assert [name for name in "abc" if do(store, "get", name, None)] == ["a", "c"]
    assert not do(store, "extend", "a", None, [b"x" * 30])
    assert (len(store), store.num_bytes) == (0, 0)


def test_what_is_abandoned_has_failed() -> None:
    store = ResponseStore(1000)
    answer = b'{"status":"in_progress","id":"a"}'
    do(store, "put", "a", StoredResponse(None, answer, b"[]", running=True, followed=True))
    do(store, "extend", "a", None, [b"first"])
    do(store, "abandon", "a")
    found = do(store, "events", "a", None, 0)
    last = json.loads(found.events[1].rpartition(b"data: ")[2])
    assert (found.running, last["type"], last["sequence_number"]) == (False, "response.failed", 1)
    assert json.loads(do(store, "get", "a", None).answer) == last["response"]
    assert last["response"]["status"] == "failed"
    do(store, "abandon", "a")
    do(store, "abandon", "b")
    assert do(store, "events", "a", None, 0).total == 2
