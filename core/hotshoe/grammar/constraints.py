"""Keeps running requests within their grammars: compiled when added, a mask after every token.

A request's state lives here, by request and not by row, so that a preempted one needs nothing
rebuilt. All masks of a step are filled in one call for each backend; a request whose grammar can
go on no more ends at once, and one that fails ends alone. Driven by the engine core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hotshoe.errors import UserError
from hotshoe.grammar.backend import (
    ForkingMatcher,
    GrammarCompiler,
    JudgingGrammar,
    Matcher,
    Vocabulary,
)
from hotshoe.grammar.backends import GrammarBackends
from hotshoe.grammar.compilation import Compilations, Ready
from hotshoe.scheduler import Request, Scheduler
from hotshoe.types import FinishReason, TokenOutput

Words = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class _Constraint:
    """One request's grammar.

    Attributes:
        grammar: None where there is nothing to compile: the text is free, but for a limit.
        deadline: `time.monotonic()` after which it no longer waits for `grammar`.
        matcher: None until the grammar begins.
        endings: Mask of the tokens that may end this request.
        begin: Where the grammar has begun, in the request's tokens.
    """

    request: Request
    grammar: Future[Ready] | None
    deadline: float
    compiler: GrammarCompiler | None = None
    matcher: Matcher | None = None
    endings: Words | None = None
    begin: int = 0

    @property
    def num_generated(self) -> int:
        return len(self.request.token_ids) - self.request.num_prompt_tokens

    def due(self) -> int | None:
        """Return the token that must come now, as the free text has taken all its tokens."""
        spec = self.request.params.grammar
        assert spec is not None
        if spec.free_tokens is None or self.num_generated < spec.free_tokens:
            return None
        tokens, start = self.request.token_ids, self.request.num_prompt_tokens
        begins = (tokens[start : start + len(o)] == list(o) for o in spec.opening)
        if spec.opening and not any(begins):
            return None
        end = list(spec.after[0])
        tail = tokens[max(start, len(tokens) - len(end) + 1) :]
        there = (n for n in range(len(tail), 0, -1) if tail[-n:] == end[:n])
        return end[next(there, 0)]

    def begins_at(self, length: int, drafts: Sequence[int] = ()) -> bool:
        """Tell whether the token before this place ends the free text before the grammar."""
        spec = self.request.params.grammar
        assert spec is not None
        tokens, first = self.request.token_ids, self.request.num_prompt_tokens
        if drafts:
            tokens = [*tokens, *drafts]
        return any(
            length - len(end) >= first and tokens[length - len(end) : length] == list(end)
            for end in spec.after
        )


class Constraints:
    """The unfinished requests that have a grammar.

    Args:
        scheduler: They are added to it by `add`, and ended in it when their grammar ends.
        backends: To compile with.
        vocabulary: Reads the vocabulary; called once, off the step path.
        cache_bytes: Memory for compiled grammars.
        timeout_s: How long a request waits for its grammar.
        vocab_size: Width of the logits.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        backends: GrammarBackends,
        vocabulary: Callable[[], Vocabulary],
        cache_bytes: int,
        timeout_s: float,
        vocab_size: int,
    ) -> None:
        self._scheduler = scheduler
        # Half of the time, so that what waits behind such a grammar still gets its turn.
        self._compilations = Compilations(backends, vocabulary, cache_bytes, timeout_s / 2)
        self._timeout_s = timeout_s
        self._num_words = -(-vocab_size // 32)
        self._compiling: dict[str, _Constraint] = {}
        self._running: dict[str, _Constraint] = {}
        self._no_endings: Words | None = None

    @property
    def compiling(self) -> bool:
        """Whether a request waits for its grammar."""
        return bool(self._compiling)

    def add(self, request: Request) -> None:
        """Queue a request, to be run when its grammar is compiled.

        Raises:
            RequestError: The scheduler refuses it.
        """
        spec = request.params.grammar
        assert spec is not None
        self._scheduler.add(request, ready=spec.kind == "text")
        if spec.kind == "text":
            constraint = self._running[request.request_id] = _Constraint(request, None, 0.0)
            self._limit(constraint)
            return
        grammar = self._compilations.submit(spec)
        deadline = time.monotonic() + self._timeout_s
        self._compiling[request.request_id] = _Constraint(request, grammar, deadline)

    def discard(self, request_id: str) -> None:
        """Forget a request that has ended; unknown ids are ignored."""
        self._compiling.pop(request_id, None)
        self._running.pop(request_id, None)

    def wait(self, timeout_s: float) -> None:
        """Wait until a grammar is compiled, but no longer than this."""
        futures = [c.grammar for c in self._compiling.values() if c.grammar is not None]
        wait(futures, timeout_s, FIRST_COMPLETED)

    def collect(self) -> list[TokenOutput]:
        """Let requests be run whose grammar is compiled; return those that failed."""
        now = time.monotonic()
        if self._compiling:
            self._compilations.relieve()
        arrived = [
            c
            for c in self._compiling.values()
            if c.grammar is None or c.grammar.done() or now > c.deadline
        ]
        failed: list[TokenOutput] = []
        for constraint in arrived:
            request_id = constraint.request.request_id
            del self._compiling[request_id]
            self._running[request_id] = constraint
            error = self._begin(constraint)
            if error is not None:
                failed.append(self._end(constraint, error))
        failed += self._fill([c for c in arrived if c.matcher is not None])
        for constraint in arrived:
            if constraint.request.request_id in self._running:
                self._scheduler.make_ready(constraint.request.request_id)
        return failed

    def advance(self, outputs: Sequence[TokenOutput]) -> list[TokenOutput]:
        """Take in a step's tokens, prepare the next masks, and end what has ended.

        Returns:
            The outputs, some marked as failed, and one more for each text that is complete: its
            last token is part of it, unlike one that ends a text.
        """
        moved: list[_Constraint] = []
        for output in outputs:
            constraint = self._running.get(output.request_id)
            if constraint is None:
                continue
            if output.finish_reason is not None:
                del self._running[output.request_id]
                if output.error is not None and constraint.matcher is not None:
                    output.error += _OVERLAP
                objection = None
                if output.finish_reason == FinishReason.STOP:
                    objection = self._objection(constraint)
                if objection is not None:
                    output.finish_reason, output.error = FinishReason.ERROR, f"grammar: {objection}"
            elif not self._follow(constraint, len(output.token_ids)):
                assert constraint.matcher is not None
                failure = constraint.matcher.failure()  # what has grown too large takes nothing
                failure = failure or "the grammar does not allow the sampled token"
                self._end(constraint, failure, output)
            elif constraint.matcher is not None:
                moved.append(constraint)
            elif output.request_id in self._running:
                self._limit(constraint)
        return [*outputs, *self._fill(moved)]

    def extend(self, request: Request, drafts: list[int]) -> tuple[list[int], list[bytes]]:
        """Keep the drafts that a request's grammar allows, and make the masks behind them.

        A copy of the matcher goes ahead; the request's own waits for what is accepted. Drafts end
        before one that ends the text, or behind which no text can follow.

        Returns:
            The leading drafts that may come, and a mask behind each where there are masks.
        """
        constraint = self._running.get(request.request_id)
        if constraint is None:
            return drafts, []
        matcher, known = constraint.matcher, len(request.token_ids)
        if matcher is None:
            spec = request.params.grammar
            if request.mask is not None:
                return [], []
            if spec is not None and spec.free_tokens is not None:  # one more token follows them
                drafts = drafts[: max(0, spec.free_tokens - constraint.num_generated - 1)]
            ends = (i for i in range(len(drafts)) if constraint.begins_at(known + i + 1, drafts))
            return drafts[: next(ends, len(drafts))], []
        kept: list[int] = []
        masks: list[bytes] = []
        if not isinstance(matcher, ForkingMatcher) or request.mask is None:
            return kept, masks
        ahead, mask = matcher.fork(), request.mask
        for draft in drafts:
            if draft in request.stop_token_ids or not mask[draft // 8] >> draft % 8 & 1:
                break
            following = self._mask_ahead(constraint, ahead) if ahead.accept(draft) else None
            if following is None:
                break
            kept.append(draft)
            masks.append(mask := following)
        return kept, masks

    def _mask_ahead(self, constraint: _Constraint, matcher: Matcher) -> bytes | None:
        """Return the mask behind a draft; None where no text can follow."""
        assert constraint.compiler is not None and constraint.endings is not None
        assert self._no_endings is not None
        mask = np.zeros((1, self._compilations.vocabulary().num_words), np.int32)
        constraint.compiler.fill([matcher], mask)
        mask &= self._no_endings
        if not mask.any() or matcher.failure() is not None:
            return None
        if matcher.may_end():
            mask |= constraint.endings
        return mask.tobytes()

    def close(self) -> None:
        """Stop compiling."""
        self._compilations.close()

    def _begin(self, constraint: _Constraint) -> str | None:
        """Take a compiled grammar, or say why there is none."""
        assert constraint.grammar is not None
        if not constraint.grammar.done():
            return (
                f"its compilation took longer than {self._timeout_s:g} s "
                "(--structured-output-timeout-s); simplify it"
            )
        error = constraint.grammar.exception()
        if error is not None:
            assert isinstance(error, UserError)
            return str(error).removeprefix("grammar: ")
        constraint.compiler, grammar = constraint.grammar.result()
        constraint.endings = _endings(constraint.request, self._compilations.vocabulary())
        spec = constraint.request.params.grammar
        if spec is not None and not spec.after:
            constraint.matcher, constraint.begin = (
                grammar.matcher(),
                constraint.request.num_prompt_tokens,
            )
        else:
            self._limit(constraint)
        return None

    def _follow(self, constraint: _Constraint, num_new: int) -> bool:
        """Take the newest tokens; False if the grammar forbids one."""
        tokens = constraint.request.token_ids
        if num_new == 1 and constraint.matcher is not None:  # nearly always
            return constraint.matcher.accept(tokens[-1])
        for place in range(len(tokens) - num_new, len(tokens)):
            if constraint.matcher is not None:
                if not constraint.matcher.accept(tokens[place]):
                    return False
            elif constraint.begins_at(place + 1):
                constraint.request.mask = None
                if constraint.grammar is None:  # all that was asked for has come
                    del self._running[constraint.request.request_id]
                    break
                constraint.matcher = constraint.grammar.result()[1].matcher()
                constraint.begin = place + 1
        return True

    def _objection(self, constraint: _Constraint) -> str | None:
        """Say why a text that ends by itself does not follow what was asked for."""
        if constraint.grammar is None or constraint.matcher is None:
            return None
        grammar = constraint.grammar.result()[1]
        if not isinstance(grammar, JudgingGrammar):
            return None
        spelt = self._compilations.vocabulary().tokens
        return grammar.objection(
            b"".join(spelt[t] for t in constraint.request.token_ids[constraint.begin :])
        )

    def _limit(self, constraint: _Constraint) -> None:
        """Allow one token alone where the free text has to end."""
        due = constraint.due()
        mask = None if due is None else _mask([due], self._num_words).tobytes()
        constraint.request.mask = mask

    def _fill(self, moved: Sequence[_Constraint]) -> list[TokenOutput]:
        """Write the masks of requests whose grammar has begun; return those that end."""
        lanes: dict[int, list[_Constraint]] = {}
        for constraint in moved:
            lanes.setdefault(id(constraint.compiler), []).append(constraint)
        ended: list[TokenOutput] = []
        for lane in lanes.values():
            compiler = lane[0].compiler
            assert compiler is not None
            vocabulary = self._compilations.vocabulary()
            if self._no_endings is None:
                self._no_endings = ~_mask(vocabulary.ending_ids, vocabulary.num_words)
            masks = np.zeros((len(lane), vocabulary.num_words), np.int32)
            compiler.fill([c.matcher for c in lane if c.matcher is not None], masks)
            masks &= self._no_endings
            alive: list[bool] = np.any(masks, axis=1).tolist()
            for constraint, mask, some in zip(lane, masks, alive, strict=True):
                output = self._finish_mask(constraint, mask, some)
                if output is not None:
                    ended.append(output)
        return ended

    def _finish_mask(self, constraint: _Constraint, mask: Words, alive: bool) -> TokenOutput | None:
        """Add the tokens that may end the text; end the request if no text can follow."""
        assert constraint.matcher is not None and constraint.endings is not None
        params = constraint.request.params
        failure = constraint.matcher.failure()
        may_end = constraint.matcher.may_end()
        if failure is not None:
            return self._end(constraint, failure)
        if alive or (may_end and constraint.num_generated == 0):
            if may_end:
                mask |= constraint.endings
            constraint.request.mask = mask.tobytes()
            return None
        if not may_end:
            return self._end(constraint, "it needs text that no token of this model spells")
        if constraint.num_generated < params.min_tokens:
            error = (
                f"it ended after {constraint.num_generated} tokens, but min_tokens is "
                f"{params.min_tokens}"
            )
            return self._end(constraint, error)
        return self._end(constraint, self._objection(constraint))

    def _end(
        self, constraint: _Constraint, error: str | None, output: TokenOutput | None = None
    ) -> TokenOutput:
        """End a request: at the end of its grammar, or with an error."""
        request_id = constraint.request.request_id
        if output is None:
            output = TokenOutput(request_id, [])
        output.finish_reason = FinishReason.STOP if error is None else FinishReason.ERROR
        output.error = None if error is None else f"grammar: {error}"
        del self._running[request_id]
        self._scheduler.abort(request_id, output.finish_reason)
        return output


_OVERLAP = (
    "; the grammar leaves only tokens that logit_bias, bad_words, allowed_token_ids, min_tokens "
    "or the model itself rule out"
)


def _endings(request: Request, vocabulary: Vocabulary) -> Words:
    """Return the mask of what may end a request: tokens that are text are the grammar's affair.

    Checkpoints may name tokens that end a text and lie beyond the logits; these never come.
    """
    tokens = vocabulary.tokens
    ids = [i for i in request.stop_token_ids if i < len(tokens) and not tokens[i]]
    return _mask(ids, vocabulary.num_words)


def _mask(token_ids: Sequence[int], num_words: int) -> Words:
    """Return packed bits, as in `StepPlan.masks`."""
    bits = np.zeros(num_words * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)
