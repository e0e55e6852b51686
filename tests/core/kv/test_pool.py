"""What a step fills is found by later ones, and never after its block was given away."""

from hotshoe.kv.pool import Pool

CONTENT = b"a"


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
