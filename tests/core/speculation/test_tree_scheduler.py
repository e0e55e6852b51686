"""The scheduler with trees of drafts against the simulated worker: a place of the cache stands for
a path through the tree, and whoever reads it as the place of another shows it."""

from random import Random

import pytest
from tests.core.scheduler.test_simulation import (
    VOCABULARY,
    Received,
    Row,
    SimulatedWorker,
    Simulation,
    reference_token,
)

from hotshoe.scheduler import Request, SchedulerConfig
from hotshoe.speculation.tree_scheduler import TreeScheduler
from hotshoe.types import SamplingParams, StepPlan, StepResult
from hotshoe.types.trees import ROOT


class TreeWorker(SimulatedWorker):
    """Writes the nodes of a tree one behind the other, each for its own path."""

    plan: StepPlan
    lost = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.plan = plan
        self.lines: dict[int, list[list[int]]] = {}
        return super().execute(plan)

    def _check_told(self, plan: StepPlan) -> None:
        for index, (lost, tokens) in plan.taken.items():
            row = self.rows[index]
            assert row.token_ids[-len(tokens) :] == tokens
            row.num_computed_tokens -= lost
            self.lost += lost
        super()._check_told(plan)
        drafts = dict(zip(plan.draft_rows, plan.drafts, strict=True))
        for index, parents in plan.parents.items():
            lines: list[list[int]] = []
            for token, parent in zip(drafts[index], parents, strict=True):
                lines.append([*([] if parent == ROOT else lines[parent]), token])
            self.lines[id(self.rows[index])] = lines

    def _up_to(self, row: Row, position: int) -> list[int]:
        lines = self.lines.get(id(row), [])
        node = position - (len(row.token_ids) - len(lines))
        if node < 0:
            return super()._up_to(row, position)
        return row.token_ids[: len(row.token_ids) - len(lines)] + lines[node]

    def _sample(
        self, index: int, row: Row, count: int, drafts: list[int], result: StepResult
    ) -> None:
        parents = self.plan.parents.get(index)
        if parents is None:
            super()._sample(index, row, count, drafts, result)
            return
        row.num_computed_tokens += count - len(drafts)
        del row.token_ids[row.num_computed_tokens :]
        row.drafted, taken, at = True, list[int](), ROOT
        while True:
            token = reference_token(row.tenant, row.token_ids + taken)
            if token is None:
                break
            taken.append(token)
            pairs = enumerate(zip(parents, drafts, strict=True))
            child = [n for n, pair in pairs if pair == (at, token)]
            if not child:
                break
            [at] = child
        row.token_ids += taken
        if taken:
            result.rows.append(index)
            result.tokens.append(taken)
        else:
            result.failed[index] = "no finite logits"


class TreeSimulation(Simulation):
    """Gives some requests trees, of a shape that stays, whose tokens are right here and there."""

    worker: TreeWorker

    def __init__(self, config: SchedulerConfig, seed: int) -> None:
        super().__init__(config, seed)
        self.scheduler, self.worker = TreeScheduler(config), TreeWorker(config, drafting=True)

    def add(self, prompt: list[int], params: SamplingParams, *labels: int) -> str:
        request_id = super().add(prompt, params, *labels)
        received: Received = self.received[request_id]
        assert self.random is not None
        if self.random.random() < 0.8:
            nodes = range(self.random.randrange(1, 10))
            received.request.parents = tuple(
                self.random.randrange(-1, n) if n else -1 for n in nodes
            )
        return request_id

    def _drafts(self, request: Request, random: Random) -> list[int]:
        if not request.parents:
            return super()._drafts(request, random)
        lines: list[list[int]] = []
        used: set[tuple[int, int]] = set()
        for parent in request.parents[: random.choice([0, 3, 9, 9, 9])]:
            line = [] if parent == ROOT else lines[parent]
            token = reference_token(request.seed, request.token_ids + line) or 0
            if (parent, token) in used or random.random() < 0.4:
                free = [t for t in range(VOCABULARY) if (parent, t) not in used]
                token = random.choice(free)
            used.add((parent, token))
            lines.append([*line, token])
        return [line[-1] for line in lines]


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("caching", [False, True])
def test_trees_change_no_token_and_no_place_of_the_cache(in_flight: int, caching: bool) -> None:
    """Through a cache that holds two of many requests, in small steps, with requests that go."""
    accepted = lost = preempted = hits = 0
    for seed in range(12):
        random = Random(seed)
        config = SchedulerConfig(
            max_num_seqs=5,
            max_num_batched_tokens=random.choice((6, 12, 40)),
            max_model_len=48,
            num_blocks=random.choice((24, 30)) * 4 // (size := random.choice((2, 4))),
            block_size=size,
            enable_prefix_caching=caching,
            max_in_flight_steps=in_flight,
        )
        simulation = TreeSimulation(config, seed)
        for i in range(14):
            params = SamplingParams(max_tokens=random.choice((3, 30)), ignore_eos=i % 3 > 0)
            simulation.add([2 + i % 5] * (i % 13 + 1), params, i % 2)
            for _ in range(random.randrange(4)):
                simulation.step()
                simulation.scheduler.check()
            if random.random() < 0.2:
                simulation.abort(random.choice(list(simulation.received)))
        simulation.drain()
        stats = simulation.scheduler.stats()
        accepted += stats.drafts.num_accepted_tokens
        lost += simulation.worker.lost
        preempted += stats.num_preemptions
        hits += stats.cache.num_hit_tokens
    assert preempted > 0 and (hits > 0) == caching
    assert 20 < lost < accepted
