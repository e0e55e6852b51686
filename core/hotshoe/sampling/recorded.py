"""Sampling as a part of a recorded step: at fixed addresses, for rows that need nothing else.

A recording holds the operation alone. Steps in which rows have penalties, masks or other stages
sample behind the recording once more, as steps without one do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.sampling.rows import Ints, arguments_of, packed_width
from hotshoe.sampling.sampler import BatchPlan, SampledBatch, Sampler
from hotshoe.slots import RecordableSampleOp, SampleOp


class RecordedSampling:
    """What recordings read and write, for as many rows as there are.

    Args:
        sampler: Plans the rows.
        op: Chosen candidate of slot `sample`.
        num_rows: The most rows of a recording.
        device: That of the logits.
    """

    def __init__(
        self, sampler: Sampler, op: RecordableSampleOp, num_rows: int, device: str
    ) -> None:
        self._sampler, self._op = sampler, op
        self._uniform = torch.zeros(num_rows, dtype=torch.float64, device=device)
        self._tokens = self._uniform.long()
        shape = 4, packed_width(num_rows)
        self._packed = torch.zeros(shape, dtype=torch.float32, device=device)
        self._arguments = arguments_of(self._packed, num_rows)
        self._arguments[2].fill_(1.0)  # as of greedy rows
        self._plan: BatchPlan | None = None

    @classmethod
    def of(
        cls, sampler: Sampler, op: SampleOp, num_rows: int, device: str
    ) -> RecordedSampling | None:
        """Return it where an operation can be recorded and any rows are."""
        if num_rows and isinstance(op, RecordableSampleOp) and op.recordable:
            return cls(sampler, op, num_rows, device)
        return None

    def __call__(self, logits: Tensor) -> Tensor:
        """Sample as `begin` said last; to be recorded.

        Args:
            logits: [n, vocab_size]; further rows stand behind those of the step.

        Returns:
            [n] int64, at a fixed address.
        """
        n = len(logits)
        arguments = [x[:n] for x in (*self._arguments, self._uniform)]
        return self._tokens[:n].copy_(self._op(logits.float(), *arguments))

    def begin(self, rows: Ints, num_tokens: Ints) -> bool:
        """Bring what the next repetition reads; tell whether a step needs nothing else.

        Args:
            rows, num_tokens: As `Sampler` takes them.
        """
        plan, n = self._sampler.planned(rows), len(rows)
        if plan.stages or self._sampler.masks[0]:
            return False
        if plan is not self._plan:
            self._packed[:, :n].copy_(plan.packed[:, :n])
            self._plan = plan
        if not plan.greedy:
            self._uniform[:n].copy_(self._sampler.uniforms(plan, num_tokens))
        return True

    def found(self, logits: Tensor) -> SampledBatch:
        """Return what the step that `begin` began has sampled, valid until the next.

        Args:
            logits: [n, vocab_size] of the step.
        """
        plan = self._plan
        assert plan is not None
        tokens = self._tokens[: len(plan.rows)]
        raw = logits[plan.logprobs_at] if plan.logprobs_rows else None
        return SampledBatch(tokens, plan.reported(raw, tokens), plan)
