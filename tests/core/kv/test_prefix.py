"""Block hashes separate everything that must not be shared, and the index is one to one."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.kv.prefix import BlockHasher, PrefixIndex

FIELDS = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)


def test_hashes_are_256_bit_and_repeatable() -> None:
    one, two = BlockHasher(2, b"key"), BlockHasher(2, b"key")
    assert one.root({}) == two.root({})
    assert one.block(one.root({}), [1, 2]) == two.block(two.root({}), [1, 2])
    assert len(one.block(one.root({}), [1, 2])) * 8 == 256


def test_hashing_is_keyed() -> None:
    one, two = BlockHasher(2, b"key 1"), BlockHasher(2, b"key 2")
    assert one.root({}) != two.root({})
    # Under the same parent too: each link of the chain is keyed, not only its start.
    assert one.block(b"parent", [1, 2]) != two.block(b"parent", [1, 2])


def test_each_hasher_draws_its_own_key() -> None:
    assert BlockHasher(2).root({}) != BlockHasher(2).root({})


def test_a_hash_covers_parent_and_tokens() -> None:
    hasher = BlockHasher(2)
    root = hasher.root({})
    first, other = hasher.block(root, [1, 2]), hasher.block(root, [2, 1])
    hashes = {root, first, other, hasher.block(first, [1, 2]), hasher.block(other, [1, 2])}
    assert len(hashes) == 5


def test_token_ids_of_any_size_hash() -> None:
    hasher = BlockHasher(2)
    assert (
        len({hasher.block(b"", [token, 5]) for token in (0, 1, 2**31 - 1, 2**32, 2**32 + 1)}) == 5
    )


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({}, {"tenant": ""}),
        ({"tenant": "a"}, {"tenant": "b"}),
        ({"tenant": "a"}, {"adapter": "a"}),
        ({"tenant": "a", "adapter": "b"}, {"tenant": "b", "adapter": "a"}),
        ({"tenant": "ab", "adapter": "c"}, {"tenant": "a", "adapter": "bc"}),
        ({"tenant": "a\x00adapterb"}, {"tenant": "a", "adapter": "b"}),
        ({"a": "bc"}, {"ab": "c"}),
    ],
)
def test_different_fields_have_different_roots(
    one: Mapping[str, str], two: Mapping[str, str]
) -> None:
    hasher = BlockHasher(2)
    assert hasher.root(one) != hasher.root(two)


@given(one=FIELDS, two=FIELDS)
def test_roots_are_equal_exactly_if_fields_are(one: dict[str, str], two: dict[str, str]) -> None:
    hasher = BlockHasher(2)
    assert (hasher.root(one) == hasher.root(two)) == (one == two)
    assert hasher.root(one) == hasher.root(dict(reversed(one.items())))


def test_a_root_can_never_be_a_block() -> None:
    """No text makes a root that equals the hash of some parent and tokens."""
    assert BlockHasher(0, b"key").root({}) != BlockHasher(0, b"key").block(b"", [])


def test_text_that_is_not_valid_unicode_hashes() -> None:
    assert BlockHasher(2).root({"tenant": "\ud800"})


def test_index_is_one_to_one() -> None:
    index = PrefixIndex(3)
    index.add(b"a", (0,))
    index.add(b"a", (1,))  # A copy of the same content: the first stays.
    assert index.find(b"a") == (0,)
    assert index.holds(0) and not index.holds(1)
    index.forget([1])
    assert len(index) == 1
    index.forget([0])
    assert index.find(b"a") is None and len(index) == 0
    index.add(b"b", (2,))
    with pytest.raises(AssertionError):
        index.add(b"c", (2,))
    index.check()
    index.clear()
    assert index.find(b"b") is None and not index.holds(2)
    index.check()


def test_check_notices_damage() -> None:
    index = PrefixIndex(2)
    index.add(b"a", (0,))
    index._hashes[0] = b"b"
    with pytest.raises(AssertionError):
        index.check()
