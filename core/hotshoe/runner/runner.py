"""Runs one step: inputs, model, sampling. The only model runner; it knows no device by name.

Sampled tokens are written to a token table on the device, from which the next step gathers its
inputs, so a following step can be started before this one's tokens have reached the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotshoe.layers import ForwardBatch
from hotshoe.models.base import Model
from hotshoe.runner.rows import Rows, StepInputs
from hotshoe.sampling import SampledBatch, Sampler, prompt_logprobs
from hotshoe.slots import AttentionMetadata, SampleOp
from hotshoe.types import StepPlan, StepResult, TokenLogprobs


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Sizes that the runner's persistent state is made for."""

    max_num_seqs: int
    max_model_len: int
    block_size: int
    max_logprobs: int


@dataclass(slots=True)
class RunningStep:
    """A step whose sampled tokens are still on the device."""

    step_id: int
    sampled: SampledBatch | None
    prompt_logprobs: dict[int, list[TokenLogprobs]]

    def result(self) -> StepResult:
        """Wait for the tokens."""
        if self.sampled is None:
            result = StepResult(self.step_id, [], [])
        else:
            result = self.sampled.step_result(self.step_id)
        result.prompt_logprobs = self.prompt_logprobs
        return result


class Runner:
    """Persistent state of the running requests on one device, and the step over it.

    Args:
        model: Built, loaded, with a KV cache.
        sample_op: The chosen sampling operation.
        device: Where tensors go.
        limits: Sizes.
        eos_token_ids: Forbidden until a request's min_tokens.
    """

    def __init__(
        self,
        model: Model,
        sample_op: SampleOp,
        device: str,
        limits: RunnerLimits,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._model = model
        self._device = device
        self._rows = Rows(limits.max_num_seqs, limits.max_model_len, limits.block_size)
        shape = (limits.max_num_seqs, self._rows.width)
        self._tokens = torch.zeros(shape, dtype=torch.int32, device=device)
        self._flat_tokens = self._tokens.view(-1)
        self._sampler = Sampler(
            model.vocab_size, sample_op, eos_token_ids, self._tokens, limits.max_logprobs
        )
        self._prompt_logprobs: dict[int, int] = {}

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> RunningStep:
        """Start a step; its `result()` waits for the device."""
        for new in plan.new_rows:
            ids = torch.tensor(new.token_ids, dtype=torch.int32)
            self._tokens[new.row, : len(new.token_ids)] = ids.to(self._device)
            self._sampler.set_row(new, new.params.bad_words_token_ids)
            self._prompt_logprobs.pop(new.row, None)
            if new.params.prompt_logprobs is not None:
                self._prompt_logprobs[new.row] = new.params.prompt_logprobs
        inputs = self._rows.advance(plan)
        hidden = self._model.forward(self._batch(inputs))
        prompts = self._prompt_positions(inputs, hidden) if self._prompt_logprobs else {}
        if self._prompt_logprobs:
            hidden = hidden[self._place(inputs.sample_at)]
            self._forget_judged_prompts(inputs)
        return RunningStep(plan.step_id, self._sample(inputs, hidden), prompts)

    def _batch(self, inputs: StepInputs) -> ForwardBatch:
        place = self._place
        counts = np.diff(inputs.query_start_loc)
        return ForwardBatch(
            input_ids=self._flat_tokens[place(inputs.token_index)],
            positions=place(inputs.positions),
            attention=AttentionMetadata(
                num_reqs=len(inputs.rows),
                query_start_loc=place(inputs.query_start_loc),
                seq_lens=place(inputs.seq_lens),
                block_table=place(inputs.block_table),
                slot_mapping=place(inputs.slot_mapping),
                max_query_len=int(counts.max()),
                max_seq_len=int(inputs.seq_lens.max()),
            ),
            outputs_at=self._outputs_at(inputs),
        )

    def _forget_judged_prompts(self, inputs: StepInputs) -> None:
        """Let later steps be cheap again once a row's last prompt token has been judged."""
        for row, computed in zip(inputs.rows.tolist(), inputs.seq_lens.tolist(), strict=True):
            if computed >= self._rows.num_prompt[row] - 1:
                self._prompt_logprobs.pop(row, None)

    def _outputs_at(self, inputs: StepInputs) -> Tensor | None:
        """Name the tokens that sample; all are wanted where prompts are judged."""
        if self._prompt_logprobs or len(inputs.sample_at) == len(inputs.positions):
            return None
        return self._place(inputs.sample_at)

    def _place(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _sample(self, inputs: StepInputs, hidden: Tensor) -> SampledBatch | None:
        if len(inputs.sample_rows) == 0:
            return None
        logits = self._model.logits(hidden)
        sampled = self._sampler(logits, inputs.sample_rows, inputs.sample_lens)
        flat = self._place(inputs.sample_rows * self._rows.width + inputs.sample_lens)
        # A failed row's -1 must not become an index before the engine hears of it.
        self._flat_tokens[flat] = sampled.tokens.clamp(min=0).to(torch.int32)
        return sampled

    def _prompt_positions(
        self, inputs: StepInputs, hidden: Tensor
    ) -> dict[int, list[TokenLogprobs]]:
        """Judge the prompt tokens that this step's positions predict, row by asking row."""
        found: dict[int, list[TokenLogprobs]] = {}
        for i, row in enumerate(inputs.rows.tolist()):
            first = int(inputs.query_start_loc[i])
            count = int(inputs.query_start_loc[i + 1]) - first
            start = int(inputs.seq_lens[i]) - count
            count = min(count, int(self._rows.num_prompt[row]) - 1 - start)
            if row not in self._prompt_logprobs or count <= 0:
                continue
            logits = self._model.logits(hidden[first : first + count])
            targets = self._tokens[row, start + 1 : start + 1 + count]
            found[row] = prompt_logprobs(logits, targets, self._prompt_logprobs[row])
        return found
