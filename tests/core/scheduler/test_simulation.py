"""Scheduler and cache against a simulated worker that knows what every slot of the cache holds.

The worker keeps its own rows and block tables, built from the plans alone. Instead of keys and
values, a slot stores which token it belongs to, at which position, after which tokens; and every
row checks in every step that its block tables lead to exactly its own tokens, as far as its group
reads them. A block of states stores after which tokens it was left, and all of them are read before
any is written. No state takes a draft before a later step accepts it; until then, what the draft
brings lies beside the state that it follows. Sampling is a function of all tokens, so that any
mistake anywhere changes the text. Drafts are right for a while, as a random number has it, and then
wrong, or longer than a request may become.
"""

import zlib
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hotshoe.engine.core.fairness import FairQueue
from hotshoe.scheduler import Request, Scheduler, SchedulerConfig
from hotshoe.types import (
    CacheGroup,
    CacheSpec,
    FinishReason,
    NewRow,
    SamplingParams,
    StepPlan,
    StepResult,
    TokenLogprobs,
    TokenOutput,
)
from hotshoe.types.cache import full_group, held_blocks

VOCABULARY = 11
MOST_DRAFTS = 9
EOS = frozenset({0, 1})


def digest(tenant: int, token_ids: list[int]) -> int:
    """A number that stands for a tenant's token sequence."""
    return zlib.crc32(array("q", [tenant, *token_ids]).tobytes())


def reference_token(tenant: int, token_ids: list[int]) -> int | None:
    """The token that follows, or None where the model fails."""
    value = digest(tenant, token_ids)
    return None if value % 61 == 0 else value // 61 % VOCABULARY


def logprobs_of(token_ids: list[int], position: int) -> TokenLogprobs:
    """Stands for the log probabilities of the token at a position."""
    return TokenLogprobs((token_ids[position],), (-float(position),), rank=1)


@dataclass
class Row:
    """What the worker knows of a row. The tenant travels as the seed."""

    tenant: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_tables: list[list[int]]
    params: SamplingParams
    drafted: bool = False
    late: int = 0  # accepted drafts that the states have not taken yet
    num_told_tokens: int = 0  # that a stage knows which does not sample

    def accept(self, count: int) -> None:
        """Take in what became of the drafts of the last step."""
        self.token_ids = self.token_ids[: self.num_computed_tokens + 1 + count]
        self.num_computed_tokens += count
        self.late = count


@dataclass
class SimulatedWorker:
    config: SchedulerConfig
    rows: dict[int, Row] = field(default_factory=dict)
    # (pool, block, offset) -> (group, tenant, position, digest of the tokens up to it)
    slots: dict[tuple[int, int, int], tuple[int, int, int, int]] = field(default_factory=dict)
    num_steps: int = 0
    drafting: bool = False

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a step as a device would: first all writes, then all reads, then sampling."""
        assert plan.step_id == self.num_steps
        self.num_steps += 1
        self._check_plan(plan)
        accepted = dict(zip(plan.accepted_rows, plan.num_accepted, strict=True))
        for index, row in self.rows.items():
            if row.drafted and index in plan.rows:
                row.accept(accepted.pop(index, 0))
                row.drafted = False
        assert not accepted, "a row accepts drafts that it had not"
        for new in plan.new_rows:
            self._initialize(new)
        self._check_told(plan)
        drafts = dict(zip(plan.draft_rows, plan.drafts, strict=True))
        for index, proposed in drafts.items():
            row = self.rows[index]
            count = plan.num_scheduled_tokens[plan.rows.index(index)]
            ends = row.num_computed_tokens + count - len(proposed)
            assert ends == len(row.token_ids), "drafts behind tokens that are not computed"
            row.token_ids = row.token_ids + proposed
        for group, row, column, block in zip(
            plan.block_groups, plan.block_rows, plan.block_cols, plan.block_ids, strict=True
        ):
            table = self.rows[row].block_tables[group]
            if block == self._null(group) and column < len(table):
                assert table[column] != block, "released twice"
                table[column] = block
                continue
            assert column == len(table), "block tables grow one by one"
            table.append(block)
        computed = list(zip(plan.rows, plan.num_scheduled_tokens, strict=True))
        for index, _ in computed:
            self._read_states(self.rows[index])
        for index, count in computed:
            self._write_states(self.rows[index], count, drafts.get(index, []))
        written: set[tuple[int, int, int]] = set()
        for row, count in zip(plan.rows, plan.num_scheduled_tokens, strict=True):
            self._write(self.rows[row], count, written)
        result = StepResult(plan.step_id, [], [])
        for row, count in zip(plan.rows, plan.num_scheduled_tokens, strict=True):
            self._read(self.rows[row], count)
            self._sample(row, self.rows[row], count, drafts.get(row, []), result)
        return result

    def _check_plan(self, plan: StepPlan) -> None:
        assert len(set(plan.rows)) == len(plan.rows) <= self.config.max_num_seqs
        assert all(0 <= row < self.config.max_num_seqs for row in plan.rows)
        assert all(count > 0 for count in plan.num_scheduled_tokens)
        assert 0 < plan.num_tokens <= self.config.max_num_batched_tokens
        new = [row.row for row in plan.new_rows]
        assert len(set(new)) == len(new) and set(new) <= set(plan.rows)
        assert not set(new) & set(plan.block_rows), "a new row brings all its blocks"
        assert set(plan.block_rows) <= set(plan.rows)
        for listed in (plan.draft_rows, plan.accepted_rows):
            assert listed == [row for row in plan.rows if row in listed], "out of order"
        assert all(plan.drafts) and all(count > 0 for count in plan.num_accepted)
        assert not set(new) & set(plan.accepted_rows)

    def _check_told(self, plan: StepPlan) -> None:
        """Assert that every token which is computed was in a plan, where stages live by plans."""
        for index, token in zip(plan.known_rows, plan.known_tokens, strict=True):
            row = self.rows[index]
            assert row.token_ids[-1] == token and index in plan.rows
            row.num_told_tokens = len(row.token_ids)
        drafts = dict(zip(plan.draft_rows, plan.drafts, strict=True))
        for index, count in zip(plan.rows, plan.num_scheduled_tokens, strict=True):
            row, last = self.rows[index], count - len(drafts.get(index, []))
            told = row.num_computed_tokens + last <= row.num_told_tokens
            assert told or not self.config.in_turns, "a stage does not know a token"

    def _initialize(self, new: NewRow) -> None:
        assert 0 <= new.num_computed_tokens < len(new.token_ids)
        self.rows[new.row] = Row(
            tenant=new.seed,
            token_ids=new.token_ids,
            num_prompt_tokens=new.num_prompt_tokens,
            num_computed_tokens=new.num_computed_tokens,
            block_tables=new.block_ids,
            params=new.params,
            num_told_tokens=len(new.token_ids),
        )

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        return self.config.groups or (full_group(self.config.block_size),)

    def _null(self, group: int) -> int:
        return self.config.pools[self.groups[group].pool]

    def _slot(self, row: Row, group: int, position: int) -> tuple[int, int, int]:
        size = self.config.block_size
        block = row.block_tables[group][position // size]
        assert block < self._null(group), "the null block is read or written"
        return self.groups[group].pool, block, position % size

    def _write(self, row: Row, count: int, written: set[tuple[int, int, int]]) -> None:
        start = row.num_computed_tokens
        assert start + count <= len(row.token_ids), "a token is computed before it is known"
        most = row.num_prompt_tokens + (row.params.max_tokens or self.config.max_model_len)
        assert start + count < min(most, self.config.max_model_len), "more than can be wanted"
        blocks = -(-(start + count) // self.config.block_size)
        for group, table in enumerate(row.block_tables):
            if self.groups[group].spec.kind == "state":
                continue
            if self.drafting:
                assert len(table) >= blocks
            else:
                assert len(table) == blocks, "exactly the blocks needed"
            held = [block for block in table if block != self._null(group)]
            assert len(set(held)) == len(held)
            for position in range(start, start + count):
                slot = self._slot(row, group, position)
                assert slot not in written, "two writers of one slot"
                written.add(slot)
                name = digest(row.tenant, self._up_to(row, position))
                self.slots[slot] = (group, row.tenant, position, name)

    def _up_to(self, row: Row, position: int) -> list[int]:
        """Return the tokens that a place of the cache stands for, its own last."""
        return row.token_ids[: position + 1]

    def _read(self, row: Row, count: int) -> None:
        for number, group in enumerate(self.groups):
            if group.spec.kind == "state":
                continue
            window = group.spec.window or self.config.max_model_len
            first = max(row.num_computed_tokens - window + 1, 0)
            for position in range(first, row.num_computed_tokens + count):
                name = digest(row.tenant, self._up_to(row, position))
                expected = (number, row.tenant, position, name)
                found = self.slots[self._slot(row, number, position)]
                assert found == expected, "wrong KV cache content"

    def _state(self, row: Row, group: int, length: int) -> tuple[int, int, int]:
        """Return where the state behind so many tokens lies."""
        none = self.groups[group].spec.checkpoints == "none"
        return (*self._slot(row, group, 0 if none else length - 1)[:2], -1)

    def _state_groups(self) -> list[tuple[int, CacheSpec]]:
        return [(i, g.spec) for i, g in enumerate(self.groups) if g.spec.kind == "state"]

    def _read_states(self, row: Row) -> None:
        length = row.num_computed_tokens - row.late
        for group, _ in self._state_groups():
            if length:
                name = digest(row.tenant, row.token_ids[:length])
                place = self._state(row, group, length)
                assert self.slots[place] == (group, row.tenant, length, name), "wrong state"
            if row.late:
                tokens = row.token_ids[: length + row.late]
                place = (*place[:2], -1 - row.late)
                expected = (group, row.tenant, length, digest(row.tenant, tokens))
                assert self.slots[place] == expected, "wrong drafts"

    def _write_states(self, row: Row, count: int, drafts: list[int]) -> None:
        start, size = row.num_computed_tokens - row.late, self.config.block_size
        end_of_drafts = row.num_computed_tokens + count
        stop, row.late = end_of_drafts - len(drafts), 0
        for group, spec in self._state_groups():
            columns = 1 if spec.checkpoints == "none" else -(-end_of_drafts // size)
            table = row.block_tables[group]
            assert len(table) == columns or (self.drafting and len(table) > columns)
            held = [b for b in table if b != self._null(group)]
            most = held_blocks(spec, len(table) * size, self.config.max_num_batched_tokens)
            assert len(held) <= most
            ends = {stop}
            if spec.checkpoints == "all":
                ends |= set(range(start - start % size + size, stop, size))
            for end in ends:
                name = digest(row.tenant, row.token_ids[:end])
                slot = self._state(row, group, end)
                if start and start % size == 0 and spec.checkpoints != "none":
                    assert slot != self._state(row, group, start), "a full block is written again"
                self.slots[slot] = (group, row.tenant, end, name)
            for place in range(1, len(drafts) + 1):
                name = digest(row.tenant, row.token_ids[: stop + place])
                beside = (*self._state(row, group, stop)[:2], -1 - place)
                self.slots[beside] = (group, row.tenant, stop, name)

    def _sample(
        self, index: int, row: Row, count: int, drafts: list[int], result: StepResult
    ) -> None:
        start, stop = row.num_computed_tokens, row.num_computed_tokens + count - len(drafts)
        row.num_computed_tokens = stop
        if row.params.prompt_logprobs is not None and start + 1 < row.num_prompt_tokens:
            last = min(stop, row.num_prompt_tokens - 1)
            result.prompt_logprobs[index] = [
                logprobs_of(row.token_ids, position) for position in range(start + 1, last + 1)
            ]
        if stop < len(row.token_ids) - len(drafts):
            return
        row.drafted = bool(drafts)
        del row.token_ids[stop:]
        taken: list[int] = []
        for draft in [*drafts, None]:
            token = reference_token(row.tenant, row.token_ids)
            if token is None and taken:
                break  # It comes again.
            row.token_ids.append(0 if token is None else token)
            if token is None:
                result.failed[index] = "no finite logits"
                return
            taken.append(token)
            if token != draft:
                break
        result.rows.append(index)
        result.tokens.append(taken)
        if row.params.logprobs is not None:
            result.logprobs[index] = [
                logprobs_of(row.token_ids, stop + place) for place in range(len(taken))
            ]


@dataclass
class Expected:
    """What a request must yield, found without any scheduler."""

    token_ids: list[int]
    finish_reason: FinishReason
    stop_token_id: int | None = None


def expect(request: Request, prompt: list[int], max_model_len: int) -> Expected:
    params, generated = request.params, []
    limit = min(max_model_len - len(prompt), params.max_tokens or max_model_len)
    while True:
        token = reference_token(request.seed, prompt + generated)
        if token is None:
            return Expected(generated, FinishReason.ERROR)
        generated.append(token)
        if len(generated) > params.min_tokens:
            if token in params.stop_token_ids:
                return Expected(generated, FinishReason.STOP, token)
            if token in EOS and not params.ignore_eos:
                return Expected(generated, FinishReason.STOP)
        if len(generated) == limit:
            return Expected(generated, FinishReason.LENGTH)


@dataclass
class Received:
    """What a request has yielded."""

    request: Request
    prompt: list[int]
    outputs: list[TokenOutput] = field(default_factory=list)
    aborted: bool = False

    @property
    def finished(self) -> bool:
        return self.aborted or (bool(self.outputs) and self.outputs[-1].finish_reason is not None)

    @property
    def token_ids(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    def check(self, max_model_len: int) -> None:
        expected = expect(self.request, self.prompt, max_model_len)
        if self.aborted:
            assert self.token_ids == expected.token_ids[: len(self.token_ids)]
            return
        last = self.outputs[-1]
        assert self.token_ids == expected.token_ids
        assert last.finish_reason is expected.finish_reason
        assert last.stop_token_id == expected.stop_token_id
        assert (last.error is not None) == (last.finish_reason is FinishReason.ERROR)
        assert all(output.finish_reason is None for output in self.outputs[:-1])
        self._check_logprobs()

    def _check_logprobs(self) -> None:
        params = self.request.params
        everything = self.prompt + self.token_ids
        position = len(self.prompt)
        for output in self.outputs:
            if output.token_ids and params.logprobs is not None:
                places = range(position, position + len(output.token_ids))
                assert output.logprobs == [logprobs_of(everything, place) for place in places]
            else:
                assert output.logprobs is None
            position += len(output.token_ids)
        delivered = [o.prompt_logprobs for o in self.outputs if o.prompt_logprobs is not None]
        wanted = [None, *(logprobs_of(self.prompt, p) for p in range(1, len(self.prompt)))]
        if params.prompt_logprobs is not None and self.token_ids:
            assert self.outputs[0].prompt_logprobs is not None
            assert delivered == [wanted]
        else:
            assert delivered == []


class Simulation:
    """A scheduler, its worker, and what every request has received."""

    def __init__(
        self, config: SchedulerConfig, drafting: int | None = None, fair: bool = False
    ) -> None:
        self.config = config
        self.scheduler = Scheduler(config, FairQueue() if fair else None)
        self.worker = SimulatedWorker(config, drafting=drafting is not None)
        self.random = None if drafting is None else Random(drafting)
        self.received: dict[str, Received] = {}
        self.in_flight: deque[tuple[StepPlan, StepResult]] = deque()

    def add(
        self, prompt: list[int], params: SamplingParams, tenant: int = 0, priority: int = 0
    ) -> str:
        request = Request(
            f"r{len(self.received)}",
            prompt,
            params,
            seed=tenant,
            priority=priority,
            **({} if tenant == 0 else {("cache_salt", "tenant")[tenant % 2]: "x"}),
            eos_token_ids=EOS,
        )
        self.scheduler.add(request)
        self.received[request.request_id] = Received(request, prompt)
        return request.request_id

    def abort(self, request_id: str) -> None:
        received = self.received[request_id]
        assert self.scheduler.abort(request_id) == (not received.finished)
        assert not self.scheduler.abort(request_id)
        received.aborted = received.aborted or not received.finished

    def step(self) -> None:
        """Plan a step if another may be in flight and there is something to do; else update."""
        if len(self.in_flight) < self.config.max_in_flight_steps:
            plan = self.scheduler.schedule()
            if plan is not None:
                self.in_flight.append((plan, self.worker.execute(plan)))
                return
            assert self.in_flight or not self.scheduler.has_work(), "stuck"
        self.update()

    def update(self) -> None:
        if not self.in_flight:
            return
        outputs = self.scheduler.update(*self.in_flight.popleft())
        assert max(Counter(o.request_id for o in outputs).values(), default=1) == 1
        for output in outputs:
            received = self.received[output.request_id]
            assert not received.finished, "output after the end"
            received.outputs.append(output)
            if output.finish_reason is None and self.random is not None:
                received.request.propose(self._drafts(received.request, self.random))

    def _drafts(self, request: Request, random: Random) -> list[int]:
        """Guess how a request goes on: some right tokens, then wrong ones, or nothing."""
        drafts: list[int] = []
        right = random.choice([0, 0, 1, 3, 7])
        for place in range(random.choice([0, 1, 2, 5, MOST_DRAFTS])):
            token = reference_token(request.seed, request.token_ids + drafts)
            guess = 0 if token is None else token
            drafts.append(guess if place < right else (guess + 1) % VOCABULARY)
        return drafts

    def drain(self) -> None:
        """Run to the end and check every request."""
        self.scheduler.release()
        longest = sum(len(r.prompt) + self.config.max_model_len for r in self.received.values())
        for _ in range(10 * longest + 10):
            if not self.scheduler.has_work():
                break
            self.step()
            self.scheduler.check()
        assert not self.scheduler.has_work(), "requests do not finish"
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.scheduler.cache.stats().num_used_blocks == 0
        for received in self.received.values():
            assert received.finished
            received.check(self.config.max_model_len)


# Prompts share prefixes often: a few letters repeated, cut anywhere.
PREFIXES = [[2, 3, 4, 5] * 5, [2, 3, 4, 5] * 2 + [6, 7] * 6, [7] * 20]
PROMPTS = st.builds(
    lambda prefix, length, tail: prefix[:length] + tail,
    st.sampled_from(PREFIXES),
    st.integers(0, 20),
    st.lists(st.integers(2, 9), min_size=1, max_size=6),
)
PARAMS = st.builds(
    lambda minimum, extra, **other: SamplingParams(
        min_tokens=minimum, max_tokens=None if extra is None else minimum + extra, **other
    ),
    st.integers(0, 4),
    st.none() | st.integers(1, 12),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), (1,), (5, 6)]),
    logprobs=st.sampled_from([None, None, 0]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)


#: Checkpoints of the groups of states that a model may have.
STATES = [(), (), (), ("none",), ("align",), ("align",), ("align", "align"), ("all",), ("all",)]


@st.composite
def groups_of(draw: st.DrawFn, block_size: int) -> tuple[CacheGroup, ...]:
    """Mix kinds and pools, or leave the one group that there is by default."""
    windows = draw(st.lists(st.sampled_from([None, 1, 2, 5, 9, 17]), max_size=4))
    groups = []
    for window in windows:
        kind = "full" if window is None else "window"
        pool = draw(st.integers(0, 1)) if groups else 0
        groups.append(CacheGroup(CacheSpec(kind, block_size, (), window), (), pool))
    last = max((group.pool for group in groups), default=-1)
    for checkpoints in draw(st.sampled_from(STATES)):
        spec = CacheSpec("state", block_size, (), checkpoints=checkpoints, drafts=MOST_DRAFTS)
        groups.insert(draw(st.integers(0, len(groups))), CacheGroup(spec, (), last + 1))
    return tuple(groups)


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    block_size = draw(st.sampled_from([1, 2, 3, 4]))
    max_num_seqs = draw(st.integers(1, 5))
    step_tokens = max_num_seqs + draw(st.sampled_from([0, 1, 5, 30]))
    groups = draw(groups_of(block_size))
    needs = [0] * (1 + max((group.pool for group in groups), default=0))
    for group in groups or (full_group(block_size),):
        needs[group.pool] += held_blocks(group.spec, 39, step_tokens)
    # Enough for one request of any length, hardly for two.
    num_blocks = tuple(need + draw(st.sampled_from([0, 1, 3, 30])) for need in needs)
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=step_tokens,
        max_model_len=40,
        num_blocks=num_blocks,
        groups=groups,
        block_size=block_size,
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        enable_prefix_caching=draw(st.sampled_from([True, True, False])),
        max_in_flight_steps=draw(st.sampled_from([1, 2, 2, 3])),
        in_turns=draw(st.sampled_from([False, False, True])),
    )


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, aborts, resets, holds and steps."""

    @initialize(config=configs(), drafting=st.none() | st.integers(0, 2**31), fair=st.booleans())
    def start(self, config: SchedulerConfig, drafting: int | None, fair: bool) -> None:
        self.simulation = Simulation(config, drafting, fair)

    @rule(
        prompt=PROMPTS,
        params=PARAMS,
        tenant=st.sampled_from([0, 0, 1, 2]),
        priority=st.integers(-1, 1),
    )
    def add(self, prompt: list[int], params: SamplingParams, tenant: int, priority: int) -> None:
        self.simulation.add(prompt, params, tenant, priority)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()
            self.simulation.scheduler.check()

    @rule()
    def update(self) -> None:
        self.simulation.update()

    @precondition(lambda self: self.simulation.received)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.simulation.abort(data.draw(st.sampled_from(sorted(self.simulation.received))))

    @precondition(lambda self: len(self.simulation.received) % 4 == 3)
    @rule()
    def reset_prefix_cache(self) -> None:
        self.simulation.scheduler.reset_prefix_cache()
        self.simulation.worker.slots.clear()  # Whatever is read from now on must be new.

    @rule(holding=st.booleans())
    def hold_or_release(self, holding: bool) -> None:
        scheduler = self.simulation.scheduler
        (scheduler.hold if holding else scheduler.release)()

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.drain()


@pytest.mark.parametrize("count", [75, pytest.param(600, marks=pytest.mark.slow)])
def test_random_histories(count: int) -> None:
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=count,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("drafting", [None, 3])
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("caching", [False, True])
def test_preemption_changes_no_token(in_flight: int, caching: bool, drafting: int | None) -> None:
    """Many requests through a cache that holds two of them."""
    config = SchedulerConfig(
        max_num_seqs=8,
        max_num_batched_tokens=16,
        max_model_len=48,
        num_blocks=24,
        block_size=4,
        enable_prefix_caching=caching,
        max_in_flight_steps=in_flight,
    )
    simulation = Simulation(config, drafting)
    for i in range(40):
        params = SamplingParams(max_tokens=30, min_tokens=25, ignore_eos=True)
        simulation.add([2 + i % 7] * (i % 13 + 1), params, tenant=i % 2)
    simulation.drain()
    stats = simulation.scheduler.stats()
    assert stats.num_preemptions > 0
    assert (stats.cache.num_hit_tokens > 0) == caching
    assert (stats.drafts.num_accepted_tokens > 100) == (drafting is not None)
    assert stats.drafts.num_draft_tokens >= stats.drafts.num_accepted_tokens
    assert stats.num_generated_tokens == sum(len(r.token_ids) for r in simulation.received.values())


def with_states(checkpoints: str, size: int = 4, **more: int) -> SchedulerConfig:
    """Attention over every token beside a state of each sequence."""
    spec = CacheSpec("state", size, (), checkpoints=checkpoints, drafts=MOST_DRAFTS)
    settings = {"max_num_seqs": 6, "max_num_batched_tokens": 30, "max_in_flight_steps": 2, **more}
    return SchedulerConfig(
        max_model_len=48,
        num_blocks=(400 // size, 400 // size),
        block_size=size,
        groups=(full_group(size), CacheGroup(spec, (), 1)),
        **settings,
    )


@pytest.mark.parametrize("checkpoints", ["none", "align", "all"])
@pytest.mark.parametrize(("in_flight", "drafting"), [(1, None), (2, None), (2, 5)])
def test_states_of_equal_prompts(checkpoints: str, in_flight: int, drafting: int | None) -> None:
    """Equal prompts that come at once, then again: no state is found in the step that makes it."""
    simulation = Simulation(with_states(checkpoints, max_in_flight_steps=in_flight), drafting)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    for _ in range(3):
        for length in (9, 13, 13, 14, 21):
            simulation.add([2, 3, 4, 5, 6, 7] * 3 + [8] * length, params)
        simulation.drain()
    hits = simulation.scheduler.stats().cache.num_hit_tokens
    assert hits == 0 if checkpoints == "none" else hits > 100
    assert drafting is None or simulation.scheduler.stats().drafts.num_accepted_tokens > 5


@pytest.mark.parametrize("checkpoints", ["align", "all"])
def test_blocks_longer_than_a_step(checkpoints: str) -> None:
    """States are kept where blocks end, though no step computes a whole block."""
    config = with_states(checkpoints, max_num_seqs=2, max_num_batched_tokens=3)
    simulation = Simulation(config)
    for _ in range(2):
        for tail in (6, 9, 6):
            simulation.add([2, 3, 4] * 5 + [tail] * 3, SamplingParams(max_tokens=9))
        simulation.drain()
    assert simulation.scheduler.stats().cache.num_hit_tokens > 0


@pytest.mark.parametrize("size", [2, 4, 8])
def test_drafts_behind_a_full_block_of_states(size: int) -> None:
    """One sequence holds no more blocks than memory is planned for."""
    config = with_states("align", size, max_num_seqs=1)
    for seed in range(8):
        simulation = Simulation(config, seed)
        simulation.add([2, 3, 4] * 5, SamplingParams(max_tokens=30, ignore_eos=True))
        simulation.drain()
        assert simulation.scheduler.stats().drafts.num_accepted_tokens > 0


def test_steps_end_where_blocks_end() -> None:
    """New prompts and those that go on, unless a budget is smaller than what a block lacks."""
    scheduler = Simulation(with_states("align", max_in_flight_steps=1)).scheduler
    for first in (100, 200):
        prompt = list(range(first, first + 23))
        scheduler.add(Request(f"r{first}", prompt, SamplingParams(max_tokens=8)))
    planned = []
    for _ in range(4):
        plan = scheduler.schedule()
        assert plan is not None
        planned.append(dict(zip(plan.rows, plan.num_scheduled_tokens, strict=True)))
        sampled = [row for row in plan.rows if sum(p.get(row, 0) for p in planned) == 23]
        scheduler.update(plan, StepResult(plan.step_id, sampled, [[5]] * len(sampled)))
    assert planned == [{0: 20, 1: 8}, {0: 3, 1: 12}, {0: 1, 1: 3}, {0: 1, 1: 1}]
