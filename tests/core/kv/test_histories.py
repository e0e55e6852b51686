"""The coordinator through random histories, over mixes of kinds and pools.

Beside it stands what every block was last written with: which band's content, of which tokens. Each
step checks that all that it reads is its own, that nobody else holds what it writes, and that the
changes which a worker is told give the tables that there are. States, which are read in another
way, are in `tests/core/scheduler/test_simulation.py`.
"""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from hotshoe.kv import KVCoordinator, StoredTokens, TableChanges
from hotshoe.types import CacheGroup, CacheSpec
from hotshoe.types.cache import held_blocks

#: Band, place within it, and a digest of all tokens up to the last that was written.
Content = tuple[int, int, int]


@dataclass
class Mix:
    """Cache groups and the memory for them."""

    groups: tuple[CacheGroup, ...]
    num_blocks: tuple[int, ...]
    block_size: int
    step_tokens: int


@dataclass(eq=False)
class Live:
    """A sequence that holds blocks, and its tables as a worker has them."""

    stored: StoredTokens
    computed: int
    tables: list[list[int]]
    digests: list[int] = field(default_factory=list)

    def digest(self, size: int, column: int, stop: int) -> int:
        """Return the number that stands for all tokens up to a column's end, or up to `stop`."""
        tokens = self.stored.token_ids
        while len(self.digests) < min(column + 1, stop // size):
            n = len(self.digests)
            before = self.digests[-1] if n else 0
            self.digests.append(hash((before, *tokens[n * size : (n + 1) * size])))
        if column < len(self.digests):
            return self.digests[column]
        return hash((self.digests[-1] if column else 0, *tokens[column * size : stop]))


class History:
    """A coordinator, the sequences under way, and what lies in every block."""

    def __init__(self, mix: Mix, random: Random) -> None:
        self.mix, self.random = mix, random
        self.cache = KVCoordinator(
            mix.num_blocks, mix.block_size, True, mix.groups, mix.step_tokens
        )
        self.content: dict[tuple[int, int], Content] = {}
        self.live: list[Live] = []
        self.num_hits = self.num_shortages = 0

    def start(self, token_ids: list[int]) -> bool:
        """Let a sequence begin if there is room for it; tell whether there was."""
        stored = StoredTokens(list(token_ids))
        hit = self.cache.find_prefix(stored)
        assert hit.num_tokens < len(token_ids)
        self.num_hits += hit.num_tokens > 0
        if self.cache.shortage(len(token_ids)) or not self.cache.fits(hit, len(token_ids), 0):
            return False
        stop = min(len(token_ids), hit.num_tokens + self.random.randint(1, self.mix.step_tokens))
        self.cache.admit(stored, hit, stop)
        new = Live(stored, hit.num_tokens, self.cache.block_ids(stored.tables))
        self.live.append(new)
        self._compute(new, stop)
        return True

    def go_on(self, one: Live) -> bool:
        """Compute more of a sequence, which grows if all of it is computed."""
        tokens, start = one.stored.token_ids, one.computed
        if start == len(tokens):
            tokens.append(self.random.randrange(9))
        stop = min(len(tokens), start + self.random.randint(1, self.mix.step_tokens))
        changes: TableChanges = []
        free = [pool.blocks.num_free for pool in self.cache.pools]
        if self.cache.shortage(stop):
            self.end(one)
            return False
        grown = self.cache.grow(one.stored, start, stop, changes)
        for groups, column, blocks in changes:
            for group, block in zip(groups, blocks, strict=True):
                table = one.tables[group]
                table[column : column + 1] = [block]
        assert one.tables == self.cache.block_ids(one.stored.tables)
        if not grown:
            self.num_shortages += 1
            now = [pool.blocks.num_free for pool in self.cache.pools]
            assert all(a >= b for a, b in zip(now, free, strict=True)), "something was taken"
            return False
        self._compute(one, stop)
        return True

    def end(self, one: Live, failed: bool = False) -> None:
        """Free a sequence; of a failed one nothing is found any more."""
        self.cache.free(one.stored)
        if failed:
            self.cache.forget(one.stored)
            found = self.cache.find_stored(StoredTokens(one.stored.token_ids)).tables
            for band, table in zip(self.cache.bands, found, strict=True):
                assert {*table} <= {band.nulls}
        self.live.remove(one)

    def check(self) -> None:
        self.cache.check()
        self.cache.check_held(one.stored for one in self.live)

    def _compute(self, one: Live, stop: int) -> None:
        """Write, then read, as every layer does in a step."""
        size, start = self.mix.block_size, one.computed
        for number, band in enumerate(self.cache.bands):
            pool = self.mix.groups[band.groups[0]].pool
            first = band.kind.first_read(start)
            held = sum(bundle != band.nulls for bundle in one.stored.tables[number])
            assert held <= band.kind.num_blocks_for(stop)
            for place, group in enumerate(band.groups):
                for column in range(start // size, -(-stop // size)):
                    block = one.tables[group][column]
                    assert self.cache.pools[pool].blocks.ref_count(block) == 1, "two writers"
                    digest = one.digest(size, column, stop)
                    self.content[pool, block] = (number, place, digest)
                for column in range(first, -(-stop // size)):
                    found = self.content[pool, one.tables[group][column]]
                    assert found == (number, place, one.digest(size, column, stop))
        self.cache.register(one.stored, stop)
        one.computed = stop


def mix_of(windows, pools, spares, block_size: int, step_tokens: int, longest: int) -> Mix:
    """Put groups into pools that hold one sequence of the greatest length, and some blocks more.

    A negative window means chunks.
    """
    groups = tuple(
        CacheGroup(
            CacheSpec(
                "full" if window is None else "window",
                block_size,
                (),
                window and abs(window),
                chunked=window is not None and window < 0,
            ),
            (),
            pool,
        )
        for window, pool in zip(windows, pools, strict=True)
    )
    needs = list(spares[: 1 + max(pools)])
    for group in groups:
        needs[group.pool] += held_blocks(group.spec, longest, step_tokens)
    return Mix(groups, tuple(needs), block_size, step_tokens)


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    windows = draw(
        st.lists(st.sampled_from([None, None, 1, 2, 5, 9, 17, -4, -12]), min_size=1, max_size=5)
    )
    pools = [draw(st.integers(0, 1)) if i else 0 for i in range(len(windows))]
    spares = draw(st.tuples(st.integers(0, 20), st.integers(1, 20)))
    size, step = draw(st.integers(1, 4)), draw(st.sampled_from([1, 3, 10]))
    return mix_of(windows, pools, spares, size, step, 40)


STEMS = [[1, 2, 3, 4] * 9, [1, 2, 3, 4] * 3 + [5] * 24, [6] * 36]


class CoordinatorMachine(RuleBasedStateMachine):
    """Arrivals, growth, ends, failures and resets in any order."""

    @initialize(mix=mixes(), seed=st.integers(0, 2**31))
    def begin(self, mix: Mix, seed: int) -> None:
        self.history = History(mix, Random(seed))

    @rule(stem=st.sampled_from(STEMS), length=st.integers(1, 36), tail=st.integers(0, 3))
    def start(self, stem: list[int], length: int, tail: int) -> None:
        self.history.start(stem[:length] + [7] * tail)

    @rule(turns=st.integers(1, 12))
    def go_on(self, turns: int) -> None:
        for _ in range(turns):
            if self.history.live:
                self.history.go_on(self.history.random.choice(self.history.live))

    @rule(failed=st.sampled_from([False, False, False, True]))
    def end(self, failed: bool) -> None:
        if self.history.live:
            self.history.end(self.history.random.choice(self.history.live), failed)

    @rule()
    def reset(self) -> None:
        if not self.history.live:
            self.history.cache.reset_prefix_cache()
            self.history.content.clear()  # whatever is read from now on must be new

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "history"):
            self.history.check()


def test_random_mixes() -> None:
    run_state_machine_as_test(
        CoordinatorMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(
    ("blocks", "steps"), [(10**4, 3000), pytest.param(10**6, 10**5, marks=pytest.mark.slow)]
)
def test_large_caches(blocks: int, steps: int) -> None:
    """Many sequences with shared beginnings, until memory is short and blocks are reused."""
    random = Random(blocks)
    windows, pools = [None, 64, 64, 64, 500], [0, 0, 0, 0, 1]
    mix = mix_of(windows, pools, (blocks, blocks // 4), 16, 256, 4000)
    history = History(mix, random)
    stems = [[random.randrange(9) for _ in range(3000)] for _ in range(8)]
    for step in range(steps):
        if random.random() < 0.1 or not history.live:
            stem, length = random.choice(stems), random.randint(1, 3000)
            history.start([*stem[:length], *(random.randrange(9) for _ in range(40))])
        one = random.choice(history.live)
        ended = not history.go_on(one) or random.random() < 0.02
        if ended and one in history.live:
            history.end(one, failed=random.random() < 0.05)
        if step % (steps // 10) == 0:
            history.check()
    while history.live:
        history.end(history.live[0])
    history.check()
    assert history.num_hits > steps // 100
    assert history.cache.stats().num_used_blocks == 0
