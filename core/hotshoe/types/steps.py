"""The two messages between scheduler and worker: what to compute, and what came out.

A *row* is a persistent place for one running request, `0 <= row < max_num_seqs`. The scheduler
hands rows out and takes them back; the worker keeps per-row state and never sees a request leave: a
row is initialized anew. Both sides derive the rest alike: a row samples one token in a step exactly
when the step computes its last known token, and its token count then grows by one. A row that also
verifies drafts yields the accepted ones first, and its next plan says how many.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from hotshoe.types.experts import ExpertCounts
from hotshoe.types.outputs import TokenLogprobs
from hotshoe.types.pooling import Pooling
from hotshoe.types.sampling_params import SamplingParams

#: Of a sequence's block tables: groups, and the blocks that they get in one column.
TableChange: TypeAlias = tuple[Sequence[int], int, Sequence[int]]


@dataclass(slots=True)
class NewRow:
    """Initial content of a row: a new request, or one resumed after preemption.

    `token_ids` are all known tokens (prompt, then generated); the first `num_computed_tokens` of
    them are already in the KV cache; `block_ids[g]`, the row's blocks in cache group g, cover what
    this step writes and all before it. An entry that no query reads is the pool's null block.
    `embeds` holds little-endian float32 [n, hidden_size]: the first n token ids stand for its rows.
    With `pooling`, the row makes a vector where another would sample its first token, and ends.
    """

    row: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[list[int]]
    params: SamplingParams
    seed: int
    pooling: Pooling | None = None
    embeds: bytes | None = None


@dataclass(slots=True)
class StepPlan:
    """One step's work. Small host data, equal on every rank.

    `rows[i]` computes its next `num_scheduled_tokens[i]` tokens. Changes to block tables of rows
    that are not new are parallel lists: group `block_groups[j]` has `block_table[block_rows[j],
    block_cols[j]] = block_ids[j]`. Waiting requests need `adapters_ahead`.

    Row `mask_rows[k]`, which samples in this step, may take only the tokens whose bits are set in
    `masks[k]`: token t is bit t mod 32 of the t // 32-th little-endian 32-bit word, and there are
    as many words as the logits need. Rows that are not listed may take any token. A row with k
    drafts is listed k + 1 times in succession, for each of its samples.

    Row `draft_rows[k]`, which samples in this step, also computes `drafts[k]`, one or more tokens
    that may follow its known ones; `num_scheduled_tokens` counts them. It samples after its last
    known token and after each draft, and accepts drafts as long as they equal what was sampled.
    Of the drafts that row `accepted_rows[k]` verified last, `num_accepted[k]` were accepted, one
    or more. The plans of a draft model also take tokens back, which is a number below zero. Each
    list of rows is in the order of `rows`. A head makes up to `num_ahead` drafts for each.
    `parents[row]` makes its drafts a tree (`hotshoe.types.trees`). In its next step, `taken[row]`
    has the number of accepted ones to compute again, then all of them and the token behind.

    A stage of layers that does not sample, and a draft model, learn from the plan what was sampled:
    `known_tokens[k]` is the last known token of row `known_rows[k]`, which samples and is not new.
    """

    step_id: int
    new_rows: list[NewRow] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    num_scheduled_tokens: list[int] = field(default_factory=list)
    block_groups: list[int] = field(default_factory=list)
    block_rows: list[int] = field(default_factory=list)
    block_cols: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    mask_rows: list[int] = field(default_factory=list)
    masks: list[bytes] = field(default_factory=list)
    draft_rows: list[int] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)
    accepted_rows: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    known_rows: list[int] = field(default_factory=list)
    known_tokens: list[int] = field(default_factory=list)
    num_ahead: int = 0
    adapters_ahead: list[str] = field(default_factory=list)
    parents: dict[int, list[int]] = field(default_factory=dict)
    taken: dict[int, tuple[int, list[int]]] = field(default_factory=dict)

    def change_tables(self, row: int, changes: Iterable[TableChange]) -> None:
        """Put blocks into a row's tables."""
        for groups, column, blocks in changes:
            self.block_groups += groups
            self.block_rows += (row,) * len(groups)
            self.block_cols += (column,) * len(groups)
            self.block_ids += blocks

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step over all rows, drafts included."""
        return sum(self.num_scheduled_tokens)


@dataclass(slots=True)
class StepResult:
    """What a step brought: `rows` and `tokens` are parallel, rows inside their prompt absent.

    A row's tokens are the accepted drafts, then the one that was sampled after them. `failed` maps
    a row to the reason why no token could be sampled (such as non-finite logits); `pooled[row]` is
    the vector of a row that pools, as little-endian float32. Neither is in `rows`. Maps of log
    probabilities hold only rows that asked for them: `logprobs[row]` runs parallel to the row's
    tokens, and `prompt_logprobs[row]` are those of the prompt positions predicted in this step.
    `ahead[row]` are drafts of a head. `experts` are new counts of how evenly ranks compute, if any.
    A `recorded` step waited for a recording.
    """

    step_id: int
    rows: list[int]
    tokens: list[list[int]]
    failed: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    pooled: dict[int, bytes] = field(default_factory=dict)
    ahead: dict[int, list[int]] = field(default_factory=dict)
    experts: ExpertCounts | None = None
    recorded: bool = field(default=False, compare=False)


class StepHandle(Protocol):
    """A step under way. Asynchronous workers return it before the device has finished."""

    def result(self) -> StepResult:
        """Wait for the step and return what it sampled."""
        ...


@dataclass(slots=True)
class FinishedStep:
    """The handle of a worker that computes a step before returning."""

    value: StepResult

    def result(self) -> StepResult:
        return self.value
