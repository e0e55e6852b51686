"""The cache coordinator with one group: prefix hits, exact block counts, registration, eviction."""

import pytest

from hotshoe.kv import KVCoordinator, StoredTokens, TableChanges

BLOCK_SIZE = 4


class Sequence(StoredTokens):
    """Tokens, and the blocks of the only group."""

    @property
    def blocks(self) -> list[int]:
        return [block for (block,) in self.tables[0]]


def make_manager(num_blocks: int = 16, caching: bool = True) -> KVCoordinator:
    return KVCoordinator([num_blocks], BLOCK_SIZE, caching)


def compute(manager: KVCoordinator, sequence: Sequence) -> list[int]:
    """Admit and register all of a sequence; return its hits."""
    hit = manager.find_prefix(sequence)
    num_tokens = len(sequence.token_ids)
    assert manager.fits(hit, num_tokens, 0)
    manager.admit(sequence, hit, num_tokens)
    manager.register(sequence, num_tokens)
    manager.check()
    return manager.block_ids(hit.tables)[0]


def found(manager: KVCoordinator, sequence: Sequence) -> list[int]:
    """Return the blocks of the prefix that is cached."""
    hit = manager.find_prefix(sequence)
    assert hit.num_tokens == len(hit.tables[0]) * BLOCK_SIZE
    return manager.block_ids(hit.tables)[0]


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)]
)
def test_block_counts_are_exact(num_tokens: int, num_blocks: int) -> None:
    manager = make_manager()
    assert manager.bands[0].kind.num_blocks_for(num_tokens) == num_blocks
    sequence = Sequence([7])
    manager.admit(sequence, manager.no_prefix(), num_tokens)
    assert len(sequence.blocks) == num_blocks == manager.stats().num_used_blocks


def test_growth_is_exact_and_all_or_nothing() -> None:
    manager = make_manager(num_blocks=3)
    sequence = Sequence([1] * 4)
    manager.admit(sequence, manager.no_prefix(), 4)
    changes: TableChanges = []
    assert manager.grow(sequence, 4, 4, changes) and len(sequence.blocks) == 1
    assert manager.grow(sequence, 4, 5, changes) and len(sequence.blocks) == 2
    assert not manager.grow(sequence, 4, 13, changes)
    assert len(sequence.blocks) == 2 and manager.pools[0].blocks.num_free == 1
    assert manager.grow(sequence, 4, 12, changes) and manager.pools[0].blocks.num_free == 0
    assert changes == [((0,), i, (block,)) for i, block in enumerate(sequence.blocks) if i]


@pytest.mark.parametrize(("num_tokens", "num_hits"), [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_one_token_is_always_left_to_compute(num_tokens: int, num_hits: int) -> None:
    manager = make_manager()
    compute(manager, Sequence(list(range(12))))
    assert len(found(manager, Sequence(list(range(num_tokens))))) == num_hits


def test_a_prefix_is_shared_while_it_is_in_use() -> None:
    manager = make_manager()
    one, two = Sequence(list(range(10))), Sequence([*range(8), 99])
    compute(manager, one)
    assert compute(manager, two) == one.blocks[:2] == two.blocks[:2]
    assert two.blocks[2] != one.blocks[2]
    assert manager.stats().num_used_blocks == 4
    manager.free(one)
    assert manager.stats().num_used_blocks == 3


def test_hits_end_at_the_first_difference() -> None:
    manager = make_manager()
    compute(manager, Sequence(list(range(16))))
    assert len(found(manager, Sequence([0, 1, 2, 3, 99, 5, 6, 7, *range(8, 16), 1]))) == 1


def test_a_freed_prefix_is_found_until_its_blocks_are_reused() -> None:
    manager = make_manager(num_blocks=4)
    prompt = list(range(13))
    one = Sequence(prompt)
    compute(manager, one)
    blocks = list(one.blocks)
    manager.free(one)
    assert found(manager, Sequence(prompt)) == blocks[:3]
    # The unfinished block goes first, then the prefix from its end.
    for num_hits in (3, 2, 1, 0):
        other = Sequence([50])
        manager.admit(other, manager.no_prefix(), 1)
        assert found(manager, Sequence(prompt)) == blocks[:num_hits]
        manager.check()


def test_unfinished_blocks_are_reused_before_older_prefixes() -> None:
    manager = make_manager(num_blocks=4)
    one, two = Sequence(list(range(9))), Sequence([50])
    compute(manager, one)
    compute(manager, two)
    unfinished = [one.blocks[2], two.blocks[0]]
    manager.free(one)
    manager.free(two)
    three = Sequence([60] * 5)
    manager.admit(three, manager.no_prefix(), 5)
    assert sorted(three.blocks) == sorted(unfinished)
    assert len(found(manager, Sequence(list(range(9))))) == 2


def test_hits_that_are_free_count_as_needed() -> None:
    manager = make_manager(num_blocks=3)
    prompt = list(range(9))
    one = Sequence(prompt)
    compute(manager, one)
    manager.free(one)
    holder = Sequence([50])
    manager.admit(holder, manager.no_prefix(), 1)
    two = Sequence(prompt)
    hits = manager.find_prefix(two)
    assert hits.num_tokens == 8 and manager.pools[0].blocks.num_free == 2
    assert not manager.fits(hits, 9, 0)
    assert manager.fits(hits, 8, 0)
    assert not manager.fits(hits, 8, 1)


@pytest.mark.parametrize(
    ("one", "two"), [(None, ""), ("a", "b"), (None, "a"), ("a", "A"), ("", "\x00")]
)
def test_hits_never_cross_salts(one: str | None, two: str | None) -> None:
    manager = make_manager()
    prompt = list(range(10))
    for owner, stranger in ((one, two), (two, one)):
        fresh = make_manager()
        compute(fresh, Sequence(prompt, owner))
        assert found(fresh, Sequence(prompt, stranger)) == []
        assert len(found(fresh, Sequence(prompt, owner))) == 2
    compute(manager, Sequence(prompt, one))
    compute(manager, Sequence(prompt, two))
    assert manager.stats().num_used_blocks == 6


def test_blocks_are_registered_as_they_fill() -> None:
    manager = make_manager()
    sequence = Sequence(list(range(12)))
    manager.admit(sequence, manager.no_prefix(), 12)
    for num_tokens, num_indexed in ((3, 0), (4, 1), (7, 1), (11, 2), (12, 3)):
        manager.register(sequence, num_tokens)
        assert manager.stats().num_indexed_blocks == num_indexed
    assert len(found(manager, Sequence(list(range(20))))) == 3


def test_each_block_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make_manager()
    hashed: list[list[int]] = []
    original = manager._hasher.block

    def count(parent: bytes, token_ids: list[int]) -> bytes:
        hashed.append(token_ids)
        return original(parent, token_ids)

    monkeypatch.setattr(manager._hasher, "block", count)
    sequence = Sequence(list(range(17)))
    compute(manager, sequence)
    manager.free(sequence)
    compute(manager, sequence)
    assert hashed == [list(range(i, i + 4)) for i in range(0, 16, 4)]


def test_equal_blocks_computed_twice_are_indexed_once() -> None:
    manager = make_manager()
    one, two = Sequence(list(range(8))), Sequence(list(range(8)))
    compute(manager, one)
    compute(manager, two)  # Shares one block; computes the other, as a token must be left.
    assert one.blocks[0] == two.blocks[0] and one.blocks[1] != two.blocks[1]
    assert manager.stats().num_indexed_blocks == 2
    assert found(manager, Sequence(list(range(9)))) == one.blocks


def test_a_block_that_is_computed_again_outlives_the_free_one() -> None:
    """The last block of a prompt is never hit by an equal prompt, so its copy has to be found."""
    manager = make_manager(num_blocks=5)
    one, two = Sequence(list(range(8))), Sequence(list(range(8)))
    compute(manager, one)
    manager.free(one)
    compute(manager, two)
    other = Sequence([50] * 12)
    manager.admit(other, manager.no_prefix(), 12)  # All that is left, the free copy first.
    manager.check()
    assert found(manager, Sequence(list(range(9)))) == two.blocks


def test_forgotten_content_is_never_hit() -> None:
    manager = make_manager()
    sequence, sharer = Sequence(list(range(10))), Sequence(list(range(10)))
    compute(manager, sequence)
    manager.admit(sharer, manager.find_prefix(sharer), 10)
    manager.free(sequence)
    manager.forget(sequence)
    manager.register(sharer, 10)  # Nor does its other holder bring it back.
    assert found(manager, Sequence(list(range(10)))) == []
    manager.free(sharer)
    manager.check()
    assert manager.stats().num_used_blocks == manager.stats().num_indexed_blocks == 0


def test_without_caching_nothing_is_hashed_or_hit() -> None:
    manager = make_manager(caching=False)
    one = Sequence(list(range(10)))
    assert compute(manager, one) == []
    assert one.block_hashes == []
    assert compute(manager, Sequence(list(range(10)))) == []


def test_reset_forgets_everything() -> None:
    manager = make_manager()
    sequence = Sequence(list(range(10)))
    compute(manager, sequence)
    with pytest.raises(AssertionError, match="still hold blocks"):
        manager.reset_prefix_cache()
    manager.free(sequence)
    manager.reset_prefix_cache()
    assert found(manager, Sequence(list(range(10)))) == []
    manager.check()


def test_statistics_count_tokens() -> None:
    manager = make_manager()
    compute(manager, Sequence(list(range(10))))
    compute(manager, Sequence(list(range(7))))
    stats = manager.stats()
    assert (stats.num_queried_tokens, stats.num_hit_tokens) == (17, 4)
    assert (stats.num_blocks, stats.num_used_blocks, stats.num_indexed_blocks) == (16, 4, 2)


def test_without_pools_every_sequence_fits_and_nothing_is_found() -> None:
    manager = KVCoordinator((), BLOCK_SIZE, enable_prefix_caching=True)
    sequence = Sequence(list(range(40)))
    hit = manager.find_prefix(sequence)
    assert hit.num_tokens == 0 and manager.fits(hit, 40, 3)
    assert manager.shortage(1000) is None and manager.null_blocks == []
    manager.admit(sequence, hit, 40)
    manager.register(sequence, 40)
    assert manager.block_ids(sequence.tables) == [] and not manager.caches_prefixes
    assert manager.grow(sequence, 0, 41, []) and manager.stats().num_blocks == 0
    manager.free(sequence)
    manager.check()
