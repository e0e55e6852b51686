"""The store of responses: bounded by bytes, oldest unused first, tenants apart."""

import asyncio
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
