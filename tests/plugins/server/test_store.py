"""The store of responses: bounded by bytes, oldest unused first, tenants apart."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from hotshoe_server.store import ResponseStore, StoredResponse


def entry(size: int, tenant: str | None = None) -> StoredResponse:
    return StoredResponse(tenant, b"a" * (size // 2), b"m" * (size - size // 2))


def test_the_oldest_unused_goes_first() -> None:
    store = ResponseStore(30)
    for name in "abc":
        store.put(name, entry(10))
    assert store.get("a", None)
    store.put("d", entry(10))
    assert [name for name in "abcd" if store.get(name, None)] == ["a", "c", "d"]


def test_an_entry_above_the_limit_is_not_kept() -> None:
    store = ResponseStore(10)
    store.put("a", entry(5))
    store.put("b", entry(11))
    assert store.get("a", None) and not store.get("b", None)


def test_tenants_are_kept_apart() -> None:
    store = ResponseStore(100)
    store.put("a", entry(5, "x"))
    assert store.get("a", "y") is None and store.get("a", None) is None
    assert not store.delete("a", "y")
    assert store.delete("a", "x") and not store.delete("a", "x")
    assert store.num_bytes == 0


names = st.sampled_from("abcdef")
steps = st.lists(
    st.tuples(st.sampled_from(["put", "get", "delete"]), names, st.integers(0, 12)), max_size=60
)


@given(steps)
def test_it_behaves_like_a_bounded_ordered_dict(steps: list[tuple[str, str, int]]) -> None:
    store, model = ResponseStore(20), OrderedDict[str, int]()
    for verb, name, size in steps:
        if verb == "put":
            model.pop(name, None)
            if size <= 20:
                model[name] = size
            while sum(model.values()) > 20:
                model.popitem(last=False)
            store.put(name, entry(size))
        elif verb == "get":
            assert (store.get(name, None) is not None) == (name in model)
            if name in model:
                model.move_to_end(name)
        else:
            assert store.delete(name, None) == (model.pop(name, None) is not None)
        assert len(store) == len(model)
        assert store.num_bytes == sum(model.values()) <= 20
