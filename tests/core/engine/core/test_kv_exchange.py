"""Blocks enter through the prefix cache, and what could not be written is never found."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hotshoe.engine.core.kv_exchange import KVExchange
from hotshoe.errors import KVTransferError
from hotshoe.executor import KVBlocks, KVDescriptor
from hotshoe.kv import KVCoordinator, StoredTokens
from hotshoe.types import CacheGroup, CachePart, CacheSpec

TOKENS = list(range(10))


def layer(block_size: int, window: int | None = None) -> CacheSpec:
    parts = tuple(CachePart(name, "thd", (block_size, 1, 8), "float32") for name in "kv")
    return CacheSpec("full" if window is None else "window", block_size, parts, window)


class Worker:
    """Keeps what each block would hold: its place in a sequence, for each group."""

    def __init__(self, block_size: int, windows: Sequence[int | None] = (None,)) -> None:
        self.form = KVDescriptor("m", tuple(layer(block_size, window) for window in windows))
        self.blocks: dict[int, int] = {}
        self.failing = False

    def describe_kv(self) -> KVDescriptor:
        return self.form

    def read_kv(self, block_ids: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[self.blocks[block] for block in blocks] for blocks in block_ids]

    def write_kv(
        self, block_ids: Sequence[Sequence[int]], first: Sequence[int], blocks: KVBlocks
    ) -> None:
        if self.failing:
            raise RuntimeError("a bad copy")
        for ids, start in zip(block_ids, first, strict=True):
            self.blocks.update({block: start + i for i, block in enumerate(ids)})


def exchange(
    num_blocks: int = 8,
    block_size: int = 2,
    caching: bool = True,
    windows: Sequence[int | None] = (None,),
) -> KVExchange:
    worker = Worker(block_size, windows)
    groups = [CacheGroup(spec, ()) for spec in worker.form.layers]
    cache = KVCoordinator([num_blocks], block_size, caching, groups=groups)
    return KVExchange(cache, worker)


def offer(count: int) -> KVBlocks:
    return KVBlocks(Worker(2).form, TOKENS[:count], [])


def test_what_was_taken_can_be_given() -> None:
    here = exchange()
    assert here.take(offer(4)) == "" and here.take(offer(10)) == ""
    here.cache.check()
    assert here.give(TOKENS).layers == [[0, 1, 2, 3, 4]]
    assert here.give([*TOKENS[:7], 99]).token_ids == TOKENS[:6]
    assert here.give(TOKENS, tenant="other").token_ids == []
    assert (
        here.cache.find_prefix(StoredTokens(TOKENS)).num_tokens == 8
    )  # one token is left to compute
    assert here.cache.stats().num_used_blocks == 0


def test_blocks_in_use_stay() -> None:
    here = exchange(num_blocks=3)
    busy = StoredTokens([77])
    here.cache.admit(busy, here.cache.no_prefix(), 1)
    here.take(offer(10))
    here.cache.check()
    assert here.give(TOKENS).token_ids == TOKENS[:4]
    assert busy.tables[0][0][0] not in here.worker.blocks


def test_what_was_not_written_is_not_found() -> None:
    here = exchange()
    here.worker.failing = True
    with pytest.raises(RuntimeError, match="a bad copy"):
        here.take(offer(10))
    here.cache.check()
    assert here.give(TOKENS).token_ids == []
    assert here.cache.pools[0].blocks.num_free == 8


def test_a_cache_without_prefixes_refuses() -> None:
    with pytest.raises(KVTransferError, match="switch it on"):
        exchange(caching=False).take(offer(4))


def test_windows_are_passed_on_without_what_they_dropped() -> None:
    there, here = exchange(20, windows=(None, 3)), exchange(20, windows=(None, 3))
    there.take(KVBlocks(there.worker.form, TOKENS, []))
    given = there.give(TOKENS)
    assert given.layers == [[0, 1, 2, 3, 4], [4]]
    assert here.take(given) == ""
    assert here.give(TOKENS).layers == given.layers
    assert here.cache.find_prefix(StoredTokens([*TOKENS, 5])).num_tokens == 10
    assert here.cache.find_prefix(StoredTokens([*TOKENS[:7], 5])).num_tokens == 0
    here.cache.check()
    assert here.cache.pools[0].null not in here.worker.blocks


def test_windows_that_do_not_meet_are_refused_before_anything_is_stored() -> None:
    there, here = exchange(20, windows=(None, 3)), exchange(20, 4, windows=(None, 3))
    there.take(KVBlocks(there.worker.form, TOKENS, []))
    with pytest.raises(KVTransferError, match="use the same block_size"):
        here.take(there.give(TOKENS))
    assert here.cache.find_stored(StoredTokens(TOKENS)).num_tokens == 0


def test_kinds_that_cannot_be_moved_are_refused() -> None:
    here = exchange()
    here.worker.form = replace(here.worker.form, layers=(CacheSpec("cross", 2, ()),))
    for move in (lambda: here.give(TOKENS), lambda: here.take(offer(4))):
        with pytest.raises(KVTransferError, match="of kind cross"):
            move()
    assert here.cache.find_stored(StoredTokens(TOKENS)).num_tokens == 0


@pytest.mark.parametrize("beside", [(), (layer(2),)])
def test_the_last_state_is_passed_on(beside: tuple[CacheSpec, ...]) -> None:
    """At once, not only after a step, and only behind the tokens that it has seen."""
    state = CacheSpec("state", 2, (CachePart("state", "h", (4,), "float32"),), checkpoints="align")

    def engine() -> KVExchange:
        worker = Worker(2)
        worker.form = KVDescriptor("m", (*beside, state))
        groups = [CacheGroup(spec, (), i) for i, spec in enumerate(worker.form.layers)]
        return KVExchange(KVCoordinator([20] * len(groups), 2, True, groups=groups), worker)

    there, here = engine(), engine()
    there.take(KVBlocks(there.worker.form, TOKENS, []))
    tables = there.cache.find_stored(StoredTokens(TOKENS)).tables
    assert [there.cache.block_ids(tables)[-1][i] for i in range(4)] == [20] * 4
    given = there.give(TOKENS)
    assert given.token_ids == TOKENS and len(given.layers[-1]) == 1
    assert here.take(given) == ""
    assert here.cache.find_stored(StoredTokens([*TOKENS, 5])).num_tokens == 10
    assert here.cache.find_stored(StoredTokens([*TOKENS[:7], 5])).num_tokens == 0
    here.cache.check()
    here.worker.failing = True
    other = [t + 50 for t in TOKENS]
    with pytest.raises(RuntimeError, match="a bad copy"):
        here.take(KVBlocks(here.worker.form, other, []))
    assert here.cache.find_stored(StoredTokens(other)).num_tokens == 0


def test_larger_blocks_take_whole_ones_only() -> None:
    here = exchange(block_size=4)
    here.take(offer(10))
    assert here.give(TOKENS).token_ids == TOKENS[:8]
