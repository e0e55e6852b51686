"""Blocks enter through the prefix cache, and what could not be written is never found."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hotshoe.engine.kv_exchange import KVExchange
from hotshoe.errors import KVTransferError
from hotshoe.executor import KVBlocks, KVDescriptor, KVLayer
from hotshoe.kv import KVCoordinator, StoredTokens
from hotshoe.slots import PLAIN_LAYOUT

TOKENS = list(range(10))


class Worker:
    """Keeps what each block would hold: its place in a sequence."""

    def __init__(self, block_size: int) -> None:
        self.form = KVDescriptor("m", "float32", block_size, (KVLayer(1, 8, PLAIN_LAYOUT),))
        self.blocks: dict[int, int] = {}
        self.failing = False

    def describe_kv(self) -> KVDescriptor:
        return self.form

    def read_kv(self, block_ids: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[self.blocks[block] for block in block_ids[0]]]

    def write_kv(self, block_ids: Sequence[Sequence[int]], first: int, blocks: KVBlocks) -> None:
        if self.failing:
            raise RuntimeError("a bad copy")
        self.blocks.update({block: first + i for i, block in enumerate(block_ids[0])})


def exchange(num_blocks: int = 8, block_size: int = 2, caching: bool = True) -> KVExchange:
    return KVExchange(KVCoordinator([num_blocks], block_size, caching), Worker(block_size))


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


def test_layers_with_a_window_are_refused() -> None:
    here = exchange()
    whole = here.worker.form
    here.worker.form = replace(whole, layers=(*whole.layers, replace(whole.layers[0], window=3)))
    for move in (lambda: here.give(TOKENS), lambda: here.take(offer(4))):
        with pytest.raises(KVTransferError, match=r"layers\[1\].*max_model_len to 3 or less") as e:
            move()
        assert e.value.field == "layers[1].window"
    assert here.cache.find_stored(StoredTokens(TOKENS)).num_tokens == 0


def test_larger_blocks_take_whole_ones_only() -> None:
    here = exchange(block_size=4)
    here.take(offer(10))
    assert here.give(TOKENS).token_ids == TOKENS[:8]
