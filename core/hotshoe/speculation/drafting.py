"""Asks the proposer for drafts of every request whose tokens have become known.

What a proposer remembers of a sequence lives here, by request and not by row, so that a preempted
one goes on where it was. Driven by the engine core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from hotshoe.config import EngineConfig
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import blaming_plugin
from hotshoe.scheduler import Request
from hotshoe.speculation.proposer import Follower, Proposer
from hotshoe.types import TokenOutput

HOOK = "hotshoe_proposers"
#: Of a request and its drafts: those that may come, and the masks behind them, if there are any.
Allowed: TypeAlias = Callable[[Request, list[int]], tuple[list[int], list[bytes]]]


class Drafting:
    """The unfinished requests that may have drafts.

    Args:
        proposer: Of the chosen method.
        limit: Most drafts of a request and step.
        blaming: Names the proposer where its code fails.
    """

    def __init__(
        self,
        proposer: Proposer,
        limit: int,
        blaming: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._proposer = proposer
        self._limit = limit
        self._blaming = blaming
        self._followed: dict[str, tuple[Request, Follower]] = {}

    def add(self, request: Request) -> None:
        """Follow a request from its first generated token on."""
        if request.pooling is None:
            with self._blaming():
                self._followed[request.request_id] = (request, self._proposer.follow())

    def discard(self, request_id: str) -> None:
        """Forget a request that has ended; unknown ids are ignored."""
        self._followed.pop(request_id, None)

    def advance(
        self, outputs: Sequence[TokenOutput], vocab_size: int, allowed: Allowed | None = None
    ) -> None:
        """Take in a step's tokens: propose how the requests that got some go on.

        Args:
            outputs: Of the step; a request may have several, of which the last one says its end.
            vocab_size: Drafts lie below it.
            allowed: Keeps the drafts of a request that its grammar allows, with the masks behind
                them.

        Raises:
            PluginError: The proposer failed, or returned what are no drafts.
        """
        for output in outputs:
            if output.finish_reason is not None:
                self.discard(output.request_id)
        for output in outputs:
            if output.request_id not in self._followed:
                continue
            request, follower = self._followed[output.request_id]
            with self._blaming():
                drafts = follower.propose(request.token_ids, self._limit)
                if drafts:
                    self._check(drafts, vocab_size)
            if drafts and allowed is not None and request.params.grammar is not None:
                request.propose(*allowed(request, drafts))
            else:
                request.propose(drafts)

    def _check(self, drafts: list[int], vocab_size: int) -> None:
        if len(drafts) > self._limit:
            raise ValueError(f"it proposed {len(drafts)} tokens where {self._limit} were wanted")
        if min(drafts) < 0 or max(drafts) >= vocab_size:
            raise ValueError(f"it proposed {drafts}, but token ids lie below {vocab_size}")


def open_drafting(config: EngineConfig, plugins: PluginManager) -> Drafting | None:
    """Make the proposer that the configuration names; None if it names none.

    Raises:
        PluginError: No plugin knows the method, or the proposer is defective.
        ConfigError: The proposer refuses an option.
    """
    options = dict(config.speculative_config or {})
    if not options:
        return None
    method, limit = options.pop("method"), options.pop("num_speculative_tokens")
    reference = plugins.pick("speculative_config.method", method, HOOK)

    def blaming() -> AbstractContextManager[None]:
        return blaming_plugin(plugins, HOOK, method)

    with blaming():
        return Drafting(resolve_lazy(reference)(options), limit, blaming)
