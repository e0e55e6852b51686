"""Order of reuse, reference counts, and content, found until its block is given away."""

import random

import pytest

from hotshoe.kv.blocks import BlockPool, Pool

CONTENT = b"a"


def test_blocks_are_reused_oldest_first() -> None:
    pool = BlockPool(4)
    assert pool.allocate(4) == [0, 1, 2, 3]
    assert pool.num_free == 0
    for block in (2, 0, 3, 1):
        pool.release([block], keep=True)
    assert pool.free_order() == [2, 0, 3, 1]
    assert pool.allocate(2) == [2, 0]


def test_worthless_blocks_are_reused_before_all_others() -> None:
    pool = BlockPool(3)
    pool.allocate(3)
    pool.release([0], keep=True)
    pool.release([1], keep=False)
    pool.release([2], keep=True)
    assert pool.free_order() == [1, 0, 2]


def test_acquire_revives_a_free_block_wherever_it_is() -> None:
    for block in range(3):
        pool = BlockPool(3)
        pool.acquire(block)
        assert pool.free_order() == [other for other in range(3) if other != block]
        assert pool.ref_count(block) == 1
        pool.check()


def test_a_shared_block_is_freed_by_its_last_holder() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.acquire(0)
    pool.release([0], keep=True)
    assert pool.num_free == 0
    pool.release([0], keep=True)
    assert pool.num_free == 1


def test_programmer_errors_are_caught() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError):
        pool.allocate(3)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release([0], keep=True)


@pytest.mark.parametrize("damage", ["_ref_counts", "_prev", "num_free"])
def test_check_notices_damage(damage: str) -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    pool.check()
    if damage == "num_free":
        pool.num_free += 1
    else:
        getattr(pool, damage)[2] += 1
    with pytest.raises(AssertionError):
        pool.check()


def test_random_use_agrees_with_a_plain_list() -> None:
    rng = random.Random()
    pool, held = BlockPool(12), dict.fromkeys(range(12), 0)
    free = list(range(12))
    for _ in range(2000):
        action, block, keep = rng.randrange(3), rng.randrange(12), rng.random() < 0.5
        if action == 0 and free:
            count = rng.randint(0, len(free))
            assert pool.allocate(count) == free[:count]
            held.update(dict.fromkeys(free[:count], 1))
            del free[:count]
        elif action == 1:
            pool.acquire(block)
            if held[block] == 0:
                free.remove(block)
            held[block] += 1
        elif held[block]:
            pool.release([block], keep)
            held[block] -= 1
            if held[block] == 0:
                free.insert(len(free) if keep else 0, block)
        pool.check()
        assert pool.free_order() == free
        assert [pool.ref_count(block) for block in range(12)] == list(held.values())


def filled(num_blocks: int) -> tuple[Pool, tuple[int, ...]]:
    pool = Pool(num_blocks)
    bundle = pool.allocate(2)
    pool.fresh[CONTENT] = bundle
    return pool, bundle


def test_fresh_content_is_found_from_the_next_step_on() -> None:
    pool, bundle = filled(3)
    assert pool.index.find(CONTENT) is None
    pool.release(bundle)
    pool.begin_step()
    pool.check()
    assert pool.index.find(CONTENT) == bundle and not pool.fresh


def test_who_gets_a_block_ends_what_it_held() -> None:
    pool, bundle = filled(2)
    pool.release(bundle)
    assert set(pool.allocate(1)) <= set(bundle)
    pool.begin_step()
    pool.check()
    assert pool.index.find(CONTENT) is None


def test_content_that_can_be_found_is_reused_last() -> None:
    pool, bundle = filled(3)
    pool.begin_step()
    pool.release(bundle)
    [other] = pool.allocate(1)
    assert other not in bundle and pool.index.find(CONTENT) == bundle


def test_blocks_in_use_are_preferred_to_free_ones_of_the_same_content() -> None:
    pool, old = filled(4)
    pool.begin_step()
    pool.release(old)
    pool.fresh[CONTENT] = new = pool.allocate(2)
    pool.begin_step()
    pool.check()
    assert pool.index.find(CONTENT) == new != old


def test_what_is_forgotten_is_not_found() -> None:
    for early in (True, False):
        pool, _ = filled(2)
        if not early:
            pool.begin_step()
        pool.forget(CONTENT)
        pool.begin_step()
        pool.check()
        assert pool.index.find(CONTENT) is None
