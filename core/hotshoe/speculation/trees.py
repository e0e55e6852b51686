"""Drafts of a head that are a tree: which requests get one, and the chain that others get."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hotshoe.scheduler import Request
from hotshoe.speculation.proposer import Wanted
from hotshoe.types import SamplingParams
from hotshoe.types.trees import DraftTree

_log = logging.getLogger(__name__)


class TreeHeads:
    """Hands on the tree that a head has made, or the chain that it begins with; see `Drafter`.

    Args:
        tree: The shape of what the head makes.
        why: Reason why all requests get chains; empty for none.
    """

    def __init__(self, tree: DraftTree, why: str = "") -> None:
        self._parents, self._chain, self._why = tree.parents, tree.chain, why
        self._said: set[str] = set()

    def add(self, request: Request) -> None:
        why = self._why or chained(request.params)
        if not why:
            request.parents = self._parents
        elif why not in self._said:
            self._said.add(why)
            _log.info("drafts are chains, not trees, for requests with %s", why)

    def discard(self, request: Request) -> None: ...

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        return [
            list(one.made[: one.limit if one.request.parents else min(one.limit, self._chain)])
            for one in wanted
        ]


def chained(params: SamplingParams) -> str:
    """Return what keeps a request from trees, empty if nothing does: what looks at the tokens
    before a place reads them where a chain has them, and reports come sample by sample."""
    penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty - 1)
    reasons = {
        "penalties": any(penalties),
        "a grammar": params.grammar is not None,
        "bad words": bool(params.bad_words or params.bad_words_token_ids),
        "arguments of logits processors": bool(params.extra_args),
        "log probabilities": params.logprobs is not None or bool(params.logprob_token_ids),
    }
    return next((why for why, holds in reasons.items() if holds), "")
