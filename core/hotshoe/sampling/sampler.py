"""From logits to tokens: plans a batch of rows once, then applies it at every step.

Knows no scheduler and no model. The runner calls `set_row` when a row starts or resumes, then the
sampler itself with the logits of the rows that sample in a step. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hotshoe.sampling.logprobs import LogprobTensors, add_logprobs, compute_logprobs
from hotshoe.sampling.masks import TokenMasks
from hotshoe.sampling.rows import Ints, RowParameters, arguments_of, place
from hotshoe.sampling.stages import Planner, Stage, Step, plan_stages
from hotshoe.sampling.uniform import uniforms
from hotshoe.sampling.verify import NO_DRAFTS, verify
from hotshoe.slots import SampleOp
from hotshoe.types import NewRow, StepResult

NO_TOKEN = "no token can be sampled: the logits hold NaN or infinity, or every token is forbidden"


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a set of rows needs, independent of the step; tensors on the device.

    Attributes:
        packed: From `RowParameters.packed`.
        arguments: temperature, top_k, top_p, min_p of `SampleOp`, views of it.
        zeros: [n] float64, the random numbers of an all-greedy batch.
        logprobs_at: [m] batch positions that report log probabilities, m may be 0.
        logprobs_widths: How many most likely tokens each of them reports.
        logprobs_more: [m, w] further tokens that they report; None if there are none.
        logprobs_counts: How many of these each of them has.
    """

    rows: Ints
    packed: Tensor
    arguments: tuple[Tensor, Tensor, Tensor, Tensor]
    greedy: bool
    zeros: Tensor
    stages: list[Stage]
    logprobs_at: Tensor
    logprobs_rows: list[int]
    logprobs_widths: list[int]
    logprobs_more: Tensor | None
    logprobs_counts: list[int]

    def reported(self, raw: Tensor | None, tokens: Tensor) -> LogprobTensors | None:
        """Return log probabilities of the positions that report some, given their logits."""
        if raw is None:
            return None
        widest = max(self.logprobs_widths)
        return compute_logprobs(raw, tokens[self.logprobs_at], widest, self.logprobs_more)


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """Sampled tokens, still on the device.

    Attributes:
        tokens: [n] int64, one for each of plan.rows; -1 where no token could be sampled.
        logprobs: Of the positions that report some.
        blamed: Why rows fail, where that is known; by row.
    """

    tokens: Tensor
    logprobs: LogprobTensors | None
    plan: BatchPlan
    blamed: Mapping[int, str] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What `step_result` needs on the host."""
        return (self.tokens, *(self.logprobs.tensors if self.logprobs is not None else ()))

    def step_result(
        self,
        step_id: int,
        tensors: Sequence[Tensor],
        drafts: Mapping[int, Sequence[int]] = NO_DRAFTS,
    ) -> StepResult:
        """Return the step's result from the host form of `tensors`, and drafts by row."""
        tokens, *logprobs = tensors
        result = StepResult(step_id, [], [])
        rows, sampled = self.plan.rows.tolist(), tokens.tolist()
        rows, taken = verify(rows, sampled, drafts) if drafts else (rows, [[t] for t in sampled])
        if min(sampled) < 0:
            pairs = zip(rows, taken, strict=True)
            result.failed = {row: NO_TOKEN for row, tokens in pairs if tokens[-1] < 0}
            taken = [tokens for tokens in taken if tokens[-1] >= 0]
            rows = [row for row in rows if row not in result.failed]
        result.rows, result.tokens = rows, taken
        if logprobs:
            plan, found = self.plan, LogprobTensors(*logprobs)
            entries = found.to_host(plan.logprobs_widths, plan.logprobs_counts)
            add_logprobs(result, plan.logprobs_rows, entries)
        return result


class Sampler:
    """Samples one token per row and position, with each row's own parameters.

    Args:
        params: Storage for the rows' parameters, as wide as the logits.
        sample_op: Chosen candidate of slot `sample`.
        eos_token_ids: Forbidden, with a request's stop tokens, until `min_tokens` are reached.
        token_table: [rows, max_model_len + 1] int32 or int64, on the device, shared with
            the runner, which writes it: all tokens known of each row, prompt first.
        max_logprobs: Caps what requests report.
        processors: Plan further stages that change values.

    Attributes:
        masks: What `set_masks` got.
    """

    def __init__(
        self,
        vocab_size: int,
        sample_op: SampleOp,
        eos_token_ids: Sequence[int],
        token_table: Tensor,
        max_logprobs: int = 20,
        processors: Sequence[Planner] = (),
    ) -> None:
        self._params = RowParameters(token_table.shape[0], vocab_size)
        self._sample_op = sample_op
        self._eos_token_ids = tuple(eos_token_ids)
        self._token_table = token_table
        self._max_logprobs = max_logprobs
        self._processors = processors
        self._plan: BatchPlan | None = None
        self._zeros = torch.zeros(64, dtype=torch.float64, device=token_table.device)
        self._nothing = torch.zeros(0, dtype=torch.int64, device=token_table.device)
        self.masks: tuple[Sequence[int], Sequence[bytes]] = ((), ())
        self._token_masks = TokenMasks(token_table.device)

    def set_row(self, new: NewRow) -> None:
        """Take over a row's parameters; its tokens are read from the token table, never from here.

        Token ids beyond the vocabulary are dropped.
        """
        self._params.set_row(new, self._eos_token_ids)
        self._plan = None

    def set_masks(self, rows: Sequence[int], masks: Sequence[bytes]) -> None:
        """Give the masks of rows that the next call samples, as in `StepPlan.masks`."""
        self.masks = (rows, masks)

    def __call__(self, logits: Tensor, rows: Ints, num_tokens: Ints) -> SampledBatch:
        """Sample one token for each entry.

        Args:
            logits: [n, vocab_size]; float32 logits are overwritten.
            rows: [n]; a row with drafts comes once for each of its positions, in order.
            num_tokens: [n], tokens before this sample, prompt and drafts included; the token
                table holds them.
        """
        plan = self.planned(rows)
        logits = logits.float()
        raw = logits[plan.logprobs_at] if plan.logprobs_rows else None
        step = Step(num_tokens, self._token_table)
        for stage in plan.stages:
            stage.apply(logits, step)
        if self.masks[0]:
            self._token_masks.apply(logits, rows, *self.masks)
        tokens = self._sample_op(logits, *plan.arguments, self.uniforms(plan, num_tokens))
        return SampledBatch(tokens, plan.reported(raw, tokens), plan, step.blamed)

    def warm_up(self, logits: Tensor) -> None:
        """Choose tokens of logits [n, vocab_size] by the operation alone, and forget them."""
        device, n = logits.device, len(logits)
        zeros = torch.zeros(n, dtype=torch.float32, device=device)
        top_k = torch.zeros(n, dtype=torch.int32, device=device)
        uniform = torch.zeros(n, dtype=torch.float64, device=device)
        self._sample_op(logits.float(), zeros, top_k, zeros + 1, zeros, uniform)

    def uniforms(self, plan: BatchPlan, num_tokens: Ints) -> Tensor:
        """Return the random numbers [n] of a step, as `SampleOp` takes them."""
        if plan.greedy:
            return plan.zeros
        values = torch.from_numpy(uniforms(self._params.seed[plan.rows], num_tokens))
        return values.to(self._token_table.device, non_blocking=True)

    def planned(self, rows: Ints) -> BatchPlan:
        """Return what rows need, the same as before while they are the same."""
        plan = self._plan
        if plan is None or (plan.rows is not rows and not np.array_equal(plan.rows, rows)):
            plan = self._plan = self._make_plan(rows.astype(np.int64, copy=False))
        return plan

    def _make_plan(self, rows: Ints) -> BatchPlan:
        params, device = self._params, self._token_table.device
        n, packed = len(rows), place(params.packed(rows), device)
        if n > len(self._zeros):
            self._zeros = torch.zeros(2 * n, dtype=torch.float64, device=device)
        reporting = np.flatnonzero(params.num_logprobs[rows] >= 0)
        widths = np.minimum(params.num_logprobs[rows[reporting]], self._max_logprobs)
        lists = [params.lists[row].logprob_ids for row in rows[reporting]]
        counts = [len(ids) for ids in lists]
        more = np.zeros((len(counts), max(counts, default=0)), np.int64)
        for place_of, ids in enumerate(lists):
            more[place_of, : len(ids)] = ids
        return BatchPlan(
            rows=rows,
            packed=packed,
            arguments=arguments_of(packed, n),
            greedy=not np.count_nonzero(params.temperature[rows]),
            zeros=self._zeros[:n],
            stages=self._stages(rows),
            logprobs_at=place(reporting, device) if counts else self._nothing,
            logprobs_rows=rows[reporting].tolist(),
            logprobs_widths=widths.tolist(),
            logprobs_more=place(more, device) if more.size else None,
            logprobs_counts=counts,
        )

    def _stages(self, rows: Ints) -> list[Stage]:
        if not self._processors and not self._params.changes[rows].any():
            return []
        return plan_stages(self._params, rows, self._token_table.device, self._processors)
