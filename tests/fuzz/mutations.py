"""Broken files: bytes of a good one changed, or values of its JSON replaced by strange ones."""

import copy
from typing import Any

from hypothesis import strategies as st

STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2**24, 2**31, 2**62, 2**63, 2**70, 10**400, 1e308, -0.5]),
    st.sampled_from(["", "x" * 300, "../x", "nul\0", "/dev/zero", "<0x41>", "\ud800", "(a+)+$"]),
    st.sampled_from([[], {}, [[]], [0, 2**70], [0, 2**62, 8], {"type": "Sequence"}]),
    st.text(max_size=8),
    st.lists(st.integers(-9, 9), max_size=4),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything inside a JSON value."""
    entries = value.items() if isinstance(value, dict) else ()
    entries = enumerate(value) if isinstance(value, list) else entries
    return [path] * bool(path) + [p for key, one in entries for p in places(one, (*path, key))]


@st.composite
def changed_json(draw: st.DrawFn, seed: Any) -> Any:
    """Replace, remove or repeat a few values of a JSON value."""
    value = copy.deepcopy(seed)
    for _ in range(draw(st.integers(1, 3))):
        found = places(value)
        if not found:
            break
        *path, last = draw(st.sampled_from(found))
        parent = value
        for key in path:
            parent = parent[key]
        if draw(st.integers(0, 3)) == 0:
            del parent[last]
        else:
            parent[last] = copy.deepcopy(draw(STRANGE))
    return value


@st.composite
def changed_bytes(draw: st.DrawFn, seed: bytes) -> bytes:
    """Overwrite, cut out or insert a few bytes."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = min(begin + draw(st.integers(0, 8)), len(data))
        data[begin:end] = draw(st.binary(max_size=8))
    return bytes(data)
