"""The null platform: no device, no torch, and tokens that one can compute by hand.

The token after t is (t + 1) mod the vocabulary. Engine, command line and server run on it whole,
so their tests assert exact tokens. Chosen by name only.
"""

from hotshoe.config import EngineConfig
from hotshoe.executor import WorkerInfo
from hotshoe.platform import Available, DeviceFacts, Platform
from hotshoe.types import FinishedStep, StepPlan, StepResult

VOCAB_SIZE = 1 << 17


class NullPlatform(Platform):
    """A platform of nothing."""

    name = "null"

    def probe(self) -> Available:
        return Available(score=-1)

    def facts(self) -> DeviceFacts:
        return DeviceFacts("null", "cpu", "nothing", "none", 1 << 30, 1)

    def create_worker(self, config: EngineConfig) -> "NullWorker":
        return NullWorker(config.max_num_seqs)


class NullWorker:
    """Counts upwards; see `hotshoe.executor.Worker`."""

    def __init__(self, max_num_seqs: int) -> None:
        self._last = [0] * max_num_seqs
        self._missing = [0] * max_num_seqs

    def load(self) -> WorkerInfo:
        return WorkerInfo(VOCAB_SIZE, 1024, cache_budget_bytes=64 << 20, has_logits=False)

    def allocate_cache(self, num_blocks: object) -> None: ...

    def execute(self, plan: StepPlan) -> FinishedStep:
        for new in plan.new_rows:
            self._last[new.row] = new.token_ids[-1]
            self._missing[new.row] = len(new.token_ids) - new.num_computed_tokens
        drafts = dict(zip(plan.draft_rows, plan.drafts, strict=True))
        taken: dict[int, list[int]] = {}
        for row, count in zip(plan.rows, plan.num_scheduled_tokens, strict=True):
            proposed = [*drafts.get(row, ()), None]
            self._missing[row] -= count + 1 - len(proposed)
            if self._missing[row] == 0:
                self._missing[row] = 1
                upwards = [(self._last[row] + 1 + i) % VOCAB_SIZE for i in range(len(proposed))]
                accepted = next(i for i, token in enumerate(upwards) if token != proposed[i])
                taken[row] = upwards[: accepted + 1]
                self._last[row] = upwards[accepted]
        return FinishedStep(StepResult(plan.step_id, list(taken), list(taken.values())))

    def close(self) -> None: ...
