"""Asks a second, smaller model for drafts: plans its steps over rows of its own.

The draft model is a worker like the engine's own, with a cache that nobody shares. Behind every
step of the engine it first computes what it does not know yet of the sequences that want drafts, a
bounded number of tokens, and then one token after the other. A sequence that is still behind gets
no drafts. One for which no room is left gets none either, so that nobody waits for a draft.

A draft is drawn with the request's own parameters and with the random number that belongs to its
place. The engine draws with the same number there, so that two models that nearly agree nearly
always draw the same token. Verification stays exact, as it does not look at how drafts were made.
States of sequences cannot go back. Before they take a draft they are copied to blocks that the row
has for that, and where it goes on from known tokens, both change places.

Driven by `Drafting`. Free of torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hotshoe.executor import StatesWorker, Worker
from hotshoe.kv.coordinator import KVCoordinator, TableChanges
from hotshoe.kv.sequence import StoredTokens
from hotshoe.scheduler import Request
from hotshoe.speculation.proposer import Wanted
from hotshoe.types import NewRow, SamplingParams, StepPlan, StepResult
from hotshoe.types.cache import CacheGroup

#: Steps of the draft model under way at once: the device works while the host plans the next one.
STEPS_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What holds for all sequences of a draft model.

    Attributes:
        max_num_seqs: Rows of its worker.
        max_model_len: Its longest sequence.
        max_num_batched_tokens: Most tokens of a step; at least `max_num_seqs`.
        vocab_sizes: Its own, and that of the model that verifies. Ids below both mean the same.
    """

    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    vocab_sizes: tuple[int, int]


@dataclass(slots=True, eq=False)
class DraftRow:
    """A sequence's place in the draft model.

    Attributes:
        held: Its blocks.
        num_known: Leading tokens of the sequence of which `num_computed` and `drafts` were made.
        num_computed: Tokens whose keys and values the cache holds, drafts behind the known ones.
        drafts: Tokens that the model drew behind the known ones.
        num_row_tokens: Tokens that the worker counts; 0 where it has to be told all anew.
        is_ahead: Its states have taken drafts; those behind the known tokens are its spare ones.
    """

    request: Request
    row: int
    held: StoredTokens
    num_known: int = 0
    num_computed: int = 0
    drafts: list[int] = field(default_factory=list)
    num_row_tokens: int = 0
    is_ahead: bool = False

    def right(self, keeps_states: bool) -> int:
        """Return how many leading tokens of the cache are those of the sequence; one is left to
        compute. States are behind all known tokens that were computed, or are made anew."""
        if keeps_states:
            known = min(self.num_known, self.num_computed)
            return known if known < len(self.request.token_ids) else 0
        found = self.request.token_ids[self.num_known : self.num_computed + 1]
        pairs = enumerate(zip(found, self.drafts, strict=False))
        agreed = next((i for i, (x, y) in pairs if x != y), min(len(found), len(self.drafts)))
        most = len(self.request.token_ids) - 1
        return min(self.num_computed, self.num_known + agreed, most)


class DraftRows:
    """Rows, blocks and steps of one draft model.

    Args:
        worker: Loaded, with its cache; one of a model with states copies these.
        limits: What holds for all sequences.
        num_blocks: Blocks of each pool of its cache.
        block_size: Tokens of a block.
        groups: Its cache groups; none is one that keeps every token.
    """

    def __init__(
        self,
        worker: Worker,
        limits: DraftLimits,
        num_blocks: Sequence[int],
        block_size: int,
        groups: Sequence[CacheGroup] = (),
    ) -> None:
        self._worker = worker
        self._limits = limits
        tokens = limits.max_num_batched_tokens
        self.cache = KVCoordinator(num_blocks, block_size, False, groups, tokens)
        self._states = [(i, band) for i, band in enumerate(self.cache.bands) if band.kind.reserved]
        # Of each row: for each band of states the bundle that its sequence does not have.
        self._spares = [
            [band.pool.allocate(len(band.groups)) for _, band in self._states]
            for _ in range(limits.max_num_seqs)
        ]
        self._free = list(range(limits.max_num_seqs))
        self._rows: dict[str, DraftRow] = {}
        # No sequence begins while blocks are short: it would only drive out another.
        self._crowded = False
        self._step_id = 0

    def discard(self, request_id: str) -> None:
        """Free what a request holds, for others to begin; unknown ids are ignored."""
        self._drop(request_id)
        self._crowded = False

    def _drop(self, request_id: str) -> None:
        place = self._rows.pop(request_id, None)
        if place is not None:
            self.cache.free(place.held)
            self._free.append(place.row)

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        """Return drafts for each sequence, none where it is behind or there is no room.

        Waits for the draft model's device.
        """
        for request_id in [name for name, own in self._rows.items() if own.request.row is None]:
            self.discard(request_id)  # preempted: it computes all anew as well
        limits = {w.request.request_id: self._limit(w) for w in wanted}
        asked = [w.request for w in wanted if limits[w.request.request_id] > 0]
        plan, ready = self._first_plan(asked, limits)
        if plan.rows:
            self._run(plan, [(place, limits[place.request.request_id]) for place in ready])
        made = {place.request.request_id: place.drafts for place in ready}
        return [self._usable(made.get(w.request.request_id, [])) for w in wanted]

    def _limit(self, wanted: Wanted) -> int:
        """Return how many drafts a sequence may have: none behind the end of either."""
        request = wanted.request
        length = len(request.token_ids)
        longest = min(self._limits.max_model_len, request.max_total_tokens - 1)
        return min(wanted.limit, longest - length)

    def _usable(self, drafts: list[int]) -> list[int]:
        """Return drafts up to the first one that the verifying model does not know."""
        size = min(self._limits.vocab_sizes)
        return next((drafts[:i] for i, token in enumerate(drafts) if token >= size), drafts)

    def _first_plan(
        self, requests: Iterable[Request], limits: Mapping[str, int]
    ) -> tuple[StepPlan, list[DraftRow]]:
        """Plan a step that computes what is missing of sequences, those first that lack least.

        Returns:
            The plan, and the sequences that draw their first draft in it, in its order.
        """
        plan, ready, budget = self._plan(), list[DraftRow](), self._limits.max_num_batched_tokens
        both = [(self._rows.get(request.request_id), request) for request in requests]
        states = bool(self._states)
        rights = (0 if own is None else own.right(states) for own, _ in both)
        missing = [
            (len(r.token_ids) - right, r) for (_, r), right in zip(both, rights, strict=True)
        ]
        for count, request in sorted(missing, key=lambda pair: pair[0]):
            length = len(request.token_ids)
            start = length - count
            stop = self.cache.step_end(start, start + min(count, budget))
            ends = stop + limits[request.request_id] - 1 if stop == length else stop
            place = self._place(request, start)
            if place is None or stop == start:
                continue
            if self._add(plan, place, start, stop, ends):
                budget -= stop - start
                if stop == length:
                    ready.append(place)
        return plan, ready

    def _place(self, request: Request, start: int) -> DraftRow | None:
        """Return a sequence's row, a free one if it has none; None where it cannot be served."""
        place = self._rows.get(request.request_id)
        known, verifying = self._limits.vocab_sizes
        unknown = known < verifying and max(request.token_ids[start:]) >= known
        if request.embeds is not None or unknown:
            return None
        if place is None:
            room = self.cache.fits(self.cache.no_prefix(), len(request.token_ids) + 1, 0)
            if self._crowded or not self._free or not room:
                return None
            place = DraftRow(request, self._free.pop(), StoredTokens([]))
            self._rows[request.request_id] = place
        return place

    def _add(self, plan: StepPlan, place: DraftRow, start: int, stop: int, ends: int) -> bool:
        """Let a step compute a sequence's tokens from `start` to `stop`.

        Args:
            ends: Tokens that the row's blocks shall hold.

        Returns:
            False if too few blocks are free; then the sequence gives its own back.
        """
        changes: TableChanges = []
        if not self._hold(place, start, ends, changes):
            self._drop(place.request.request_id)
            self._crowded = True
            return False
        if place.is_ahead:
            changes += self._go_back(place)
        request, length = place.request, len(place.request.token_ids)
        counts = place.num_row_tokens - place.num_computed
        if counts == 1 and stop == length == start + 1:  # the worker draws behind its last token
            plan.change_tables(place.row, changes)
            moved = length - place.num_row_tokens
            if moved:
                plan.accepted_rows.append(place.row)
                plan.num_accepted.append(moved)
            plan.known_rows.append(place.row)
            plan.known_tokens.append(request.token_ids[-1])
        else:
            plan.new_rows.append(self._new_row(place, start))
        plan.rows.append(place.row)
        plan.num_scheduled_tokens.append(stop - start)
        place.num_known, place.num_computed, place.drafts = length, stop, []
        place.num_row_tokens = length + (stop == length)
        return True

    def _go_back(self, place: DraftRow) -> TableChanges:
        """Let a sequence have the states behind its known tokens again."""
        changes: TableChanges = []
        spares = self._spares[place.row]
        for number, (i, band) in enumerate(self._states):
            table = place.held.tables[i]
            table[0], spares[number] = spares[number], table[0]
            changes.append((band.groups, 0, table[0]))
        place.is_ahead = False
        return changes

    def _keep_states(self, places: Sequence[DraftRow]) -> None:
        """Copy states before they take drafts."""
        if not self._states:
            return
        assert isinstance(self._worker, StatesWorker)
        copies = {}
        for number, (i, band) in enumerate(self._states):
            for at, group in enumerate(band.groups):
                sources = [place.held.tables[i][0][at] for place in places]
                copies[group] = sources, [self._spares[p.row][number][at] for p in places]
        self._worker.copy_blocks(copies)
        for place in places:
            place.is_ahead = True

    def _hold(self, place: DraftRow, start: int, ends: int, changes: TableChanges) -> bool:
        """Take blocks for a sequence's tokens up to `ends`; False if too few are free."""
        held = place.held
        if held.tables:
            return self.cache.grow(held, start, ends, changes)
        hit = self.cache.no_prefix()
        if not self.cache.fits(hit, ends, 0):
            return False
        self.cache.admit(held, hit, ends)
        return True

    def _new_row(self, place: DraftRow, start: int) -> NewRow:
        request = place.request
        blocks = self.cache.block_ids(place.held.tables)
        tokens, prompt = list(request.token_ids), request.num_prompt_tokens
        params = _drawing(request.params)
        return NewRow(place.row, tokens, prompt, start, blocks, params, request.seed)

    def _plan(self) -> StepPlan:
        self._step_id += 1
        return StepPlan(self._step_id)

    def _run(self, plan: StepPlan, drawing: Sequence[tuple[DraftRow, int]]) -> None:
        """Compute a first step and then one for each draft behind the first.

        Args:
            plan: The first step.
            drawing: Sequences that draw in it, and how many drafts each shall have.
        """
        places = {place.row: place for place, _ in drawing}
        flying = deque([self._worker.execute(plan)])
        for number in range(1, max((limit for _, limit in drawing), default=0)):
            going = [place for place, limit in drawing if limit > number]
            if number == 1:
                self._keep_states(going)
            plan = self._plan()
            plan.rows = [place.row for place in going]
            plan.num_scheduled_tokens = [1] * len(going)
            flying.append(self._worker.execute(plan))
            for place in going:
                place.num_computed += 1
                place.num_row_tokens += 1
            if len(flying) == STEPS_IN_FLIGHT:
                _collect(flying.popleft().result(), places)
        for handle in flying:
            _collect(handle.result(), places)
        for place, _ in drawing:
            if place.row not in places:
                self._drop(place.request.request_id)


def _collect(result: StepResult, places: dict[int, DraftRow]) -> None:
    """Give a step's tokens to its sequences; forget those for which none could be drawn."""
    for row in result.failed:
        places.pop(row, None)
    for row, tokens in zip(result.rows, result.tokens, strict=True):
        if row in places:
            places[row].drafts += tokens


def _drawing(params: SamplingParams) -> SamplingParams:
    """Return how a draft model draws for a request: alike, but without reports and grammar."""
    return replace(params, n=1, grammar=None, adapter=None, logprobs=None, prompt_logprobs=None)
