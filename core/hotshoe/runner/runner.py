"""Runs one step: inputs, model, sampling. The only model runner; it knows no device by name.

Sampled tokens are written to a token table on the device, from which the next step gathers its
inputs, so a following step can be started before this one's tokens have reached the host. Nothing
here waits for the device; `RunningStep.result` does. Drafts come from the host and lie in the table
until what was sampled takes their places; what stands behind an accepted token is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hotshoe.layers import AdapterTable, Changes, ForwardBatch, ViewPlan
from hotshoe.models.base import GENERATE, DraftHead, Model
from hotshoe.runner.adapters import AdapterRows
from hotshoe.runner.ahead import Ahead, MadeDrafts, Tables
from hotshoe.runner.forward import Forward, StagedInputs
from hotshoe.runner.given import GivenRows
from hotshoe.runner.graphs import Pieces, Recordings, graph_sizes
from hotshoe.runner.inbox import Inbox
from hotshoe.runner.levels import ahead_of
from hotshoe.runner.limits import Operations, RunnerLimits
from hotshoe.runner.look_ups import LookUps
from hotshoe.runner.padding import padding_inputs
from hotshoe.runner.peers import Peers
from hotshoe.runner.pooling import PooledRows, PoolingRows
from hotshoe.runner.prompt_logprobs import MAX_POSITIONS, PromptSpan, prompt_logprobs, prompt_spans
from hotshoe.runner.recording import Recorder
from hotshoe.runner.rows import Ints, Rows, StepInputs
from hotshoe.runner.running import RunningStep
from hotshoe.runner.trees import NO_NODES, RecordedTrees, TreeRows, without_nodes
from hotshoe.runner.verified import as_decodes
from hotshoe.sampling import LogprobTensors, RecordedSampling, SampledBatch, Sampler
from hotshoe.sampling.verify import branching
from hotshoe.types import StepPlan

#: Device memory for a step's arrays, at a fixed address; steps that bring more get their own.
INBOX_BYTES = 1 << 20
#: Repeats a recorded, staged step; returns logits of rows that sample, and tokens if it did so.
Replay: TypeAlias = Callable[[StepInputs, StagedInputs], tuple[Tensor, SampledBatch | None]]


class Runner:
    """Persistent state of the running requests on one device, and the step over it.

    Args:
        model: Built, loaded, with a KV cache.
        ops: Chosen operations.
        device: Where tensors go.
        limits: What holds for all requests.
        views: What the model's layers read of a step.
        peers: The ranks that run the same steps. The first of the last stage samples for those
            that share its layers; other stages neither sample nor report.
        adapters: Those that requests may name; None for none.
    """

    def __init__(
        self,
        model: Model,
        ops: Operations,
        device: str,
        limits: RunnerLimits,
        views: Sequence[ViewPlan],
        peers: Peers | None = None,
        adapters: AdapterTable | None = None,
    ) -> None:
        self._model = model
        self._peers = peers or Peers()
        self._is_first, self._is_last = self._peers.mesh.pp.is_first, self._peers.mesh.pp.is_last
        self._adapters = AdapterRows(adapters, limits, device, ops.transfer) if adapters else None
        self._transfer = ops.transfer
        self._limits = limits
        num_groups = len(limits.null_blocks)
        sizes = limits.max_num_seqs, limits.max_model_len, limits.block_size
        self._rows = (TreeRows if limits.tree else Rows)(*sizes, num_groups, limits.lags)
        self._padding_slots: Ints = np.array(limits.null_blocks, np.int32) * limits.block_size
        self._inbox = Inbox(ops.transfer, device, INBOX_BYTES, limits.max_steps_in_flight)
        self._record = ops.graph.record
        # By what adapters change in them; that of which nothing is recorded stays empty.
        self._decodes = {changes: Recordings(limits.graph_sizes) for changes in Changes}
        self._mixed = {changes: Recordings(limits.piece_sizes) for changes in Changes}
        self._waited = False  # whether this step did, for its recording
        self._shares = bool(limits.shared_sizes)
        self._verified = self._decodes
        if self._shares:
            self._verified = {changes: Recordings(limits.shared_sizes) for changes in Changes}
        self._trees = {c: RecordedTrees(limits, self._adapters, c) for c in Changes if limits.tree}
        self._recorded_with: set[Changes] = set()
        self._pieces = Pieces(ops.graph, max(limits.piece_sizes, default=0))
        # Both tables have one row more than requests: padding writes there, and reads null blocks.
        shape = (limits.max_num_seqs + 1, self._rows.width)
        self._tokens = torch.zeros(shape, dtype=torch.int32, device=device)
        self._flat_tokens = self._tokens.view(-1)
        self._nowhere = limits.max_num_seqs * self._rows.width
        nulls = torch.tensor(limits.null_blocks, dtype=torch.int32, device=device)
        self._blocks = nulls.view(-1, 1, 1).repeat(1, shape[0], self._rows.max_blocks)
        sampling = (limits.eos_token_ids, self._tokens, limits.max_logprobs, ops.processors)
        self._sampler = Sampler(model.vocab_size, ops.sample, *sampling)
        # A recorded step that decodes samples as well: all ranks do, and take the first's tokens.
        samples = self._is_last and GENERATE in model.tasks
        sizes_of_steps = (*limits.graph_sizes, *limits.shared_sizes)
        recorded = max(sizes_of_steps, default=0) if samples else 0
        self._choice = RecordedSampling.of(self._sampler, ops.sample, recorded, device)
        # How many of the most likely tokens to report of a row's prompt; -1 reports nothing.
        self._prompt_widths = np.full(limits.max_num_seqs, -1, np.int32)
        self._pooling = PoolingRows()
        self._given = GivenRows(model.hidden_size, device)
        # Rows that give embeddings, or of which more is looked at than the states that sample.
        self._special: set[int] = set()
        self._ahead: Ahead | None = None
        self._leads = self._is_last and (self._peers.tp is None or self._peers.tp.rank == 0)
        self._look_ups = LookUps(ops.search, self._tokens) if ops.search and self._leads else None
        own = (self._flat_tokens, self._blocks.unbind(), self._padding_slots, tuple(views))
        self._tables = Tables(*own, limits.block_size, limits.max_model_len)
        self._forward = Forward(model, self._tables, self._peers, self._adapters, self._pieces)

    def add_head(self, head: DraftHead) -> None:
        """Let a loaded head make drafts behind each step; its caches are among the model's."""
        self._ahead = self._forward.ahead = ahead_of(head, self._tables, self._limits.tree)
        self._choice = None

    def execute(self, plan: StepPlan) -> RunningStep:
        """Start a step; its `result()` waits for the device."""
        with torch.inference_mode():  # a decorator would cost more in each step
            return self._execute(plan)

    def _execute(self, plan: StepPlan) -> RunningStep:
        for new in plan.new_rows:
            self._sampler.set_row(new)
            width = new.params.prompt_logprobs
            self._prompt_widths[new.row] = -1 if width is None else width
            wishes = (width, new.pooling, new.embeds)
            special = any(value is not None for value in wishes)
            if special or new.row in self._special:  # of the request before
                self._pooling.set_row(new)
                self._given.set_row(new)
                (self._special.add if special else self._special.discard)(new.row)
        if self._adapters is not None:
            self._adapters.take(plan)
        self._sampler.set_masks(plan.mask_rows, plan.masks)
        if self._ahead is not None:
            self._ahead.begin(plan)
        if self._look_ups is not None:
            self._look_ups.begin(plan)
        self._waited = False
        step = self._run(plan.step_id, self._rows.advance(plan))
        step.recorded = self._waited
        if plan.draft_rows:
            step.drafts = branching(plan)
        return step

    @torch.inference_mode()
    def warm_up(self, lengths: Sequence[int]) -> None:
        """Run prompts of these lengths as the largest of steps, keeping nothing, and wait."""
        if self._adapters is not None:
            self._adapters.end()
        row, slots = self._limits.max_num_seqs, self._padding_slots
        inputs = padding_inputs(np.array(lengths, np.int32), row, slots, self._limits.block_size)
        if self._limits.tree is not None:
            branched = without_nodes(inputs)
            self._forward(branched, self._stage(branched)[0], every=True)
        staged, _ = self._stage(inputs)
        hidden = None
        if not self._is_first:  # whatever the stage before would send
            hidden = self._peers.inbox.new_zeros(inputs.num_tokens, self._peers.inbox.shape[1])
        hidden = self._forward(inputs, staged, every=True, hidden=hidden)
        if self._ahead is not None:
            self._ahead.warm_up()
        if self._look_ups is not None:
            self._look_ups.warm_up()
        if self._is_last and GENERATE in self._model.tasks:
            logits = self._forward.logits(hidden[-max(self._limits.max_samples, MAX_POSITIONS) :])
            self._sampler.warm_up(logits[:1])
        self._transfer.download([])()

    @torch.inference_mode()
    def record_graphs(self, every: bool = False) -> None:
        """Record steps of some sizes, or of every; see `Recorder`. Called again, it records what
        is missing, and what adapters that came since may change."""
        kinds = (Changes.NOTHING,) if self._adapters is None else self._adapters.recordable()
        how = (self._record, self._transfer), self._adapters, (self._peers.tp, self._tokens.device)
        recorder = Recorder(self._limits, self._stage, *how, every)
        ahead = None if self._recorded_with else self._ahead
        for changes in kinds:
            if every or changes not in self._recorded_with:
                self._recorded_with.add(changes)
                recorder.decodes(self._decodes[changes], changes, self._decode)
                if self._shares:
                    recorder.decodes(self._verified[changes], changes, self._decode, shared=True)
                recorder.in_pieces(self._mixed[changes], changes, self._forward, self._pieces)
                recorder.trees(self._trees.get(changes), changes, self._forward)
        if ahead is not None and self._limits.piece_sizes:
            ahead.record(self._record, graph_sizes(self._limits.max_num_seqs))

    def _decode(self, staged: StagedInputs) -> Tensor:
        found = self._forward.decode(staged)
        if self._choice is not None:
            self._put(staged.sampled_index, self._choice(found))
        return found

    def _run(self, step_id: int, inputs: StepInputs) -> RunningStep:
        adapters = self._adapters
        changes = Changes.NOTHING if adapters is None else adapters.begin(inputs)
        if self._special and not self._special.isdisjoint(inputs.rows.tolist()):
            spans = prompt_spans(inputs, self._prompt_widths, self._rows.num_prompt)
            special = spans, self._pooling.among(inputs), self._given.among(inputs)
            if any(special):
                return self._run_special(step_id, inputs, *special)
        count = inputs.num_tokens
        padded, replay = self._recorded(inputs, changes)
        staged, in_place = self._stage(padded)
        inputs = padded if padded.tree is None else inputs
        arrived = sampled = None
        if not self._is_first:
            arrived = self._peers.receive(count, len(inputs.positions))
        if replay is not None and in_place:
            logits, sampled = replay(inputs, staged)
        else:
            logits = hidden = self._forward(padded, staged, every=False, hidden=arrived)
            if self._is_last and len(inputs.sample_rows):
                logits = self._forward.logits(hidden)
        if not self._is_last:
            return self._pass_on(step_id, logits[:count])
        if sampled is None:
            return self._end(step_id, *self._sample(inputs, logits, staged))
        return self._end(step_id, sampled, self._looked_up(inputs, sampled.tokens))

    def _pass_on(self, step_id: int, hidden: Tensor) -> RunningStep:
        """End a step that another stage goes on with."""
        self._peers.send(hidden)
        return RunningStep(step_id, None, [], self._transfer.download([]))

    def _run_special(
        self,
        step_id: int,
        whole: StepInputs,
        spans: list[PromptSpan],
        pooling: list[int],
        given: list[tuple[slice, Tensor]],
    ) -> RunningStep:
        """Run a step with embeddings, or with more hidden states looked at than those that sample.

        Args:
            spans: From `prompt_spans`.
            pooling: From `PoolingRows.among`.
            given: From `GivenRows.among`.
        """
        inputs = self._pooling.without(whole) if pooling else whole
        staged, _ = self._stage(inputs)
        arrived = None if self._is_first else self._peers.receive(inputs.num_tokens)
        hidden = self._forward(inputs, staged, every=True, given=given, hidden=arrived)
        if not self._is_last:
            return self._pass_on(step_id, hidden)
        prompts = prompt_logprobs(spans, hidden, self._forward.logits, self._tokens)
        pooled = self._pooling.take(whole, pooling, hidden, self._forward.vectors)
        sampling = hidden[staged.sample_at]
        logits = self._forward.logits(sampling) if len(inputs.sample_rows) else sampling
        return self._end(step_id, *self._sample(inputs, logits, staged), prompts, pooled)

    def _end(
        self,
        step_id: int,
        sampled: SampledBatch | None,
        made: MadeDrafts | None,
        prompts: Sequence[tuple[int, LogprobTensors, int]] = (),
        pooled: Sequence[PooledRows] = (),
    ) -> RunningStep:
        """Have all that a step brought sent to the host."""
        tensors = [*sampled.tensors] if sampled is not None else []
        for _, found, _ in prompts:
            tensors += found.tensors
        tensors += [found.vectors for found in pooled]
        if made is not None:
            tensors.append(made.tokens)
        arrived = self._transfer.download(tensors)
        return RunningStep(step_id, sampled, [*prompts], arrived, pooled, made=made)

    def _recorded(self, inputs: StepInputs, changes: Changes) -> tuple[StepInputs, Replay | None]:
        """Pad a step for the recording that holds it, and return what gives its logits then."""
        if inputs.tree is not None and (own := self._trees[changes].found(inputs, self._forward)):
            return own
        kinds = self._decodes if inputs.decodes_only else self._mixed
        if self._limits.piece_sizes:
            whole = as_decodes(inputs, self._verified[changes], self._shares)
            kinds = kinds if whole is inputs else self._verified
            inputs = whole
        found, slots = kinds[changes], self._padding_slots
        known = len(found.made)
        size = found.ready(len(inputs.positions))
        self._waited = len(found.made) > known
        if size is None:
            return inputs, None
        if self._adapters is not None and changes:
            self._adapters.pad(size, changes)
        repeat = partial(found.replay, size)
        if kinds is not self._mixed:
            padded = inputs.padded(size, self._limits.max_num_seqs, slots)
            return padded, partial(self._replay_decodes, repeat)
        return inputs.padded_tokens(size, slots), partial(self._replay_pieces, repeat)

    def _replay_decodes(
        self, repeat: Callable[[], Tensor], inputs: StepInputs, staged: StagedInputs
    ) -> tuple[Tensor, SampledBatch | None]:
        samples = inputs.sample_rows, inputs.sample_lens
        plain = self._choice is not None and self._choice.begin(*samples)
        found = repeat()
        if self._ahead is None:
            logits = found[: len(inputs.sample_rows)]
            return logits, self._choice.found(logits) if self._choice and plain else None
        batch = self._ahead.slots(staged.positions, staged.slot_mapping)
        batch = batch or ForwardBatch(staged.positions, *self._forward.read(inputs, staged))
        self._ahead.keep(found, batch)
        return self._forward.logits(found[: len(inputs.sample_rows)]), None

    def _replay_pieces(
        self, repeat: Callable[[], Tensor], inputs: StepInputs, staged: StagedInputs
    ) -> tuple[Tensor, SampledBatch | None]:
        self._forward.set_pieces(inputs, staged)
        hidden = repeat()
        if self._ahead is not None:
            own = slice(inputs.num_tokens)
            pieces = self._pieces
            batch = ForwardBatch(staged.positions[own], pieces.shape, pieces.views)
            self._ahead.keep(hidden[own], batch)
        sampling = self._is_last and len(inputs.sample_rows)
        return (self._forward.logits(hidden[staged.sample_at]) if sampling else hidden), None

    def _stage(self, inputs: StepInputs) -> tuple[StagedInputs, bool]:
        """Bring a step's arrays to the device and the tables there up to date."""
        index = inputs.sample_rows * self._rows.width + inputs.sample_lens
        if (spare := len(inputs.rows) - len(index)) > 0:
            index = np.concatenate([index, np.full(spare, self._nowhere)])
        views, in_place = self._inbox.stage(
            [
                inputs.token_index,
                inputs.positions,
                inputs.slot_mapping.reshape(-1),
                inputs.rows,
                inputs.query_start_loc,
                inputs.seq_lens,
                *(inputs.tree or NO_NODES),
                inputs.spans,
                index,
                inputs.sample_at,
                inputs.blocks.index,
                inputs.blocks.values,
                inputs.tokens.index,
                inputs.tokens.values,
            ]
        )
        staged = StagedInputs(*views)
        if len(inputs.blocks.index):
            self._blocks.view(-1).index_copy_(0, staged.block_index, staged.block_values)
        if len(inputs.tokens.index):
            self._flat_tokens.index_copy_(0, staged.token_put_index, staged.token_put_values)
        return staged, in_place

    def _sample(
        self, inputs: StepInputs, logits: Tensor, staged: StagedInputs
    ) -> tuple[SampledBatch | None, MadeDrafts | None]:
        ahead, index = self._ahead, staged.token_index[: inputs.num_tokens]
        places = staged.sampled_index[: len(inputs.sample_rows)]
        if len(inputs.sample_rows) == 0:
            return None, None if ahead is None else ahead(inputs, index, None, places)
        sampled, tokens = None, torch.empty_like(places)
        if self._leads:
            sampled = self._sampler(logits, inputs.sample_rows, inputs.sample_lens)
            tokens = sampled.tokens
        if ahead is None:
            return sampled, self._looked_up(inputs, self._put(places, tokens))
        verified = self._flat_tokens[places]
        return sampled, ahead(inputs, index, verified, self._put(places, tokens))

    def _looked_up(self, inputs: StepInputs, tokens: Tensor) -> MadeDrafts | None:
        return None if self._look_ups is None else self._look_ups(inputs, tokens)

    def _put(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Write the first rank's tokens into the table, and return them as they stand there."""
        if self._peers.tp is not None:
            self._peers.tp.broadcast(tokens, 0)
        # A failed row's -1 must not become an index before the engine hears of it.
        tokens = tokens.clamp(min=0).to(torch.int32)
        self._flat_tokens.index_copy_(0, places, tokens)
        return tokens
