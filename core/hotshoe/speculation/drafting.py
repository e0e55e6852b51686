"""Asks the proposer for drafts of every request whose tokens have become known.

What a proposer remembers of a sequence lives here, by request and not by row, so that a preempted
one goes on where it was. Driven by the engine core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from hotshoe.config import MTP, EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import blaming_plugin
from hotshoe.scheduler import Request
from hotshoe.speculation.budget import Acceptance, Budget
from hotshoe.speculation.proposer import Drafter, Follower, LearningFollower, Proposer, Wanted
from hotshoe.speculation.trees import TreeHeads
from hotshoe.types import StepPlan, TokenOutput
from hotshoe.types.trees import TREE

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.runner.limits import Search

HOOK = "hotshoe_proposers"
#: Of methods whose head lies in a directory of its own.
HEADS = "hotshoe_heads"
#: Options of all methods.
EVERY_METHOD = ("method", "num_speculative_tokens", "adaptive")
#: The method whose drafter the engine makes, as it needs a worker.
DRAFT_MODEL = "draft_model"
NOTHING: Mapping[int, Sequence[int]] = MappingProxyType({})
#: Of a request and its drafts: those that may come, and the masks behind them, if there are any.
Allowed: TypeAlias = Callable[[Request, list[int]], tuple[list[int], list[bytes]]]


@dataclass(slots=True)
class Followed:
    """A request, and how often guesses of its tokens were right."""

    request: Request
    acceptance: Acceptance


class Followers:
    """Asks a proposer of a plugin, sequence by sequence; see `Drafter`."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self._followers: dict[str, Follower] = {}

    def add(self, request: Request) -> None:
        self._followers[request.request_id] = self._proposer.follow()

    def discard(self, request: Request) -> None:
        """Forget a request that has ended.

        A proposer that learns gets its answer, unless the request shares its prefixes with few:
        how fast another's answer comes would tell that this one was given.
        """
        follower = self._followers.pop(request.request_id)
        shared = request.cache_salt is None and request.tenant is None
        if shared and isinstance(follower, LearningFollower):
            follower.learn(request.token_ids, request.num_prompt_tokens)

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        return [
            self._followers[w.request.request_id].propose(w.request.token_ids, w.limit)
            for w in wanted
        ]


class Heads:
    """Hands on the drafts that a head of the model has made in the step itself; see `Drafter`."""

    def add(self, request: Request) -> None: ...

    def discard(self, request: Request) -> None: ...

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        return [list(one.made[: one.limit]) for one in wanted]


class Drafting:
    """The unfinished requests that may have drafts.

    Args:
        drafter: Of the chosen method.
        limit: Most drafts of a request and step.
        blaming: Names the drafter where its code fails.
        budget: Says how many of them; None: always as many.
        max_num_seqs: Most requests that run at once.
        clock: Seconds.
    """

    def __init__(
        self,
        drafter: Drafter,
        limit: int,
        blaming: Callable[[], AbstractContextManager[None]],
        budget: Budget | None = None,
        max_num_seqs: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._drafter = drafter
        self._limit = limit
        self._blaming = blaming
        self._budget = budget
        self._max_num_seqs = max_num_seqs
        self._clock = clock
        self._ended_s: float | None = None
        self._followed: dict[str, Followed] = {}
        self._most = limit  # of those that requests may have now
        #: Whether any request goes on with drafts.
        self.proposed = False

    def add(self, request: Request) -> None:
        """Follow a request from its first generated token on."""
        if request.pooling is None:
            with self._blaming():
                self._drafter.add(request)
            acceptance = Acceptance() if self._budget is None else self._budget.follow()
            self._followed[request.request_id] = Followed(request, acceptance)

    def discard(self, request_id: str) -> None:
        """Forget a request that has ended; unknown ids are ignored."""
        followed = self._followed.pop(request_id, None)
        if followed is not None:
            with self._blaming():
                self._drafter.discard(followed.request)

    def advance(
        self,
        plan: StepPlan,
        outputs: Sequence[TokenOutput],
        vocab_size: int,
        allowed: Allowed | None = None,
        made: Mapping[int, Sequence[int]] = NOTHING,
        timed: bool = True,
    ) -> None:
        """Take in a step's tokens: propose how the requests that got some go on.

        Args:
            plan: Of the step.
            outputs: Of the step; a request may have several, of which the last one says its end.
            vocab_size: Drafts lie below it.
            allowed: Keeps the drafts of a request that its grammar allows, with the masks behind
                them.
            made: Drafts that a head has made behind the step, by row.
            timed: Whether the step's time tells something of others.

        Raises:
            PluginError: The proposer failed, or returned what are no drafts.
        """
        if self._budget is not None:
            self._count(self._budget, plan, outputs, timed)
        self.proposed = False
        for output in outputs:
            if output.finish_reason is not None:
                self.discard(output.request_id)
        if not self._followed:
            self._ended_s = None
        if self._budget is not None and not self._budget.drafting:
            self._rest(outputs)
            return
        found = {output.request_id: self._followed.get(output.request_id) for output in outputs}
        wanted = [self._wanted(one, made) for one in found.values() if one is not None]
        self._most = max((one.limit for one in wanted), default=self._most)
        for request, drafts in self._ask(wanted, vocab_size):
            self.proposed = self.proposed or bool(drafts)
            if drafts and allowed is not None and request.params.grammar is not None:
                request.propose(*allowed(request, drafts))
            else:
                request.propose(drafts)

    def _rest(self, outputs: Sequence[TokenOutput]) -> None:
        """Let the requests go on without drafts; at a full batch it is called in each step."""
        for output in outputs:
            followed = self._followed.get(output.request_id)
            if followed is not None and followed.request.stepwise:
                followed.request.propose([])

    @property
    def num_ahead(self) -> int:
        """Most drafts of a row that a head shall make behind the next step."""
        idle = self._budget is not None and not self._budget.drafting
        return 0 if idle else self._most

    def _wanted(self, followed: Followed, made: Mapping[int, Sequence[int]]) -> Wanted:
        """Say how many drafts a sequence may have, perhaps none."""
        request, budget = followed.request, self._budget
        limit = self._limit if budget is None else budget.limit(followed.acceptance)
        row = request.row
        return Wanted(request, limit, () if row is None else made.get(row, ()))

    def _ask(self, wanted: list[Wanted], vocab_size: int) -> list[tuple[Request, list[int]]]:
        """Return the drafts of every sequence, none for those that may have none."""
        asked = [one for one in wanted if one.limit]
        found = [(one.request, list[int]()) for one in wanted if not one.limit]
        if asked:
            with self._blaming():
                for one, drafts in zip(asked, self._drafter.propose(asked), strict=True):
                    if drafts:
                        self._check(drafts, vocab_size, one.limit)
                    found.append((one.request, drafts))
        return found

    def _count(
        self, budget: Budget, plan: StepPlan, outputs: Sequence[TokenOutput], timed: bool
    ) -> None:
        """Tell the budget how long a step took and what became of its drafts."""
        began_s, self._ended_s = self._ended_s, self._clock()
        num_drafts = dict(zip(plan.draft_rows, map(len, plan.drafts), strict=True))
        total = sum(num_drafts.values())
        accepted = 0
        for output in outputs if num_drafts else ():
            followed = self._followed.get(output.request_id)
            if followed is None:
                continue
            row = followed.request.row
            tried = 0 if row is None else num_drafts.get(row, 0)
            if tried:
                accepted += len(output.token_ids) - 1
                budget.verified(followed.acceptance, tried, len(output.token_ids) - 1)
        budget.at(min(len(self._followed), self._max_num_seqs))
        if timed and began_s is not None and plan.num_tokens == len(plan.rows) + total:
            budget.stepped(self._ended_s - began_s, len(plan.rows), total, accepted)

    def _check(self, drafts: list[int], vocab_size: int, limit: int) -> None:
        if len(drafts) > limit:
            raise ValueError(f"it proposed {len(drafts)} tokens where {limit} were wanted")
        if min(drafts) < 0 or max(drafts) >= vocab_size:
            raise ValueError(f"it proposed {drafts}, but token ids lie below {vocab_size}")


def open_drafting(
    config: EngineConfig, plugins: PluginManager, draft_model: Drafter | None = None
) -> Drafting | None:
    """Make the proposer that the configuration names; None if it names none.

    Args:
        draft_model: What makes the drafts where the method is a draft model.

    Raises:
        PluginError: No plugin knows the method, or the proposer is defective.
        ConfigError: The proposer refuses an option.
    """
    given = config.speculative_config
    if not given:
        return None
    method, limit = given["method"], config.num_speculative_tokens
    budget = Budget(limit) if given.get("adaptive", True) else None
    options = own_options(given)
    methods = plugins.mapping(HEADS)
    if method == MTP or method in methods:
        check_head(config, options, ("model", TREE))
        tree = config.draft_tree
        if tree is None:
            return Drafting(Heads(), limit, nullcontext, budget, config.max_num_seqs)
        heads = TreeHeads(tree, "logits processors" if config.logits_processors else "")
        return Drafting(heads, limit, nullcontext, max_num_seqs=config.max_num_seqs)
    if draft_model is not None:
        return Drafting(draft_model, limit, nullcontext, budget, config.max_num_seqs)
    own = (
        dict.fromkeys((DRAFT_MODEL, MTP, *methods)) if plugins.mapping(HOOK) else None
    )  # else it says what to install
    reference = plugins.pick("speculative_config.method", method, HOOK, own)

    def blaming() -> AbstractContextManager[None]:
        return blaming_plugin(plugins, HOOK, method)

    with blaming():
        kind = resolve_lazy(reference)
        proposer = kind(options)
        drafter = Heads() if _searches(kind) else Followers(proposer)
    return Drafting(drafter, limit, blaming, budget, config.max_num_seqs)


def device_search(config: EngineConfig, plugins: PluginManager) -> Search | None:
    """Return what finds drafts behind each step on the device; None where nothing does.

    Raises:
        PluginError: The proposer is defective.
        ConfigError: It refuses an option.
    """
    given = config.speculative_config or {}
    method = given.get("method", "")
    reference = plugins.mapping(HOOK).get(method)
    if reference is None:
        return None
    guard = blaming_plugin(plugins, HOOK, method)
    with guard:
        kind = resolve_lazy(reference)
        if not _searches(kind):
            return None
        search = kind(own_options(given)).search

    def checked(tokens: Tensor, lengths: Tensor, limit: int) -> Tensor:
        found: Tensor = search(tokens, lengths, limit)
        shape, wanted = tuple(found.shape), (len(tokens), limit)
        if shape != wanted or found.is_floating_point():
            raise TypeError(f"search() returned {found.dtype} {shape}, not whole numbers {wanted}")
        return found

    guarded: Search = guard(checked)
    return guarded


def _searches(kind: object) -> bool:
    """Return whether a proposer's class is a `DeviceProposer`'s."""
    return callable(getattr(kind, "search", None))


def own_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a method alone, of `speculative_config`."""
    return {name: value for name, value in given.items() if name not in EVERY_METHOD}


def lies_apart(options: Mapping[str, Any], heads: Mapping[str, str]) -> bool:
    """Return whether a method's head lies in a directory of its own.

    Layers that predict further tokens do so only where `model` names one. Else they are part of
    the model's checkpoint.

    Args:
        options: `speculative_config`.
        heads: The methods that plugins name as `HEADS`.
    """
    method = options.get("method")
    return method in heads and (method != MTP or "model" in options)


def check_head(config: EngineConfig, options: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Refuse what a head cannot be asked for.

    Args:
        options: Of `speculative_config`, without those of every method.
        known: Those that the method has.

    Raises:
        ConfigError: With the name of the option.
    """
    method = (config.speculative_config or {})["method"]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"speculative_config: method {method} has no option {name}; it takes "
                f"{' and '.join((*known, *EVERY_METHOD[1:]))} alone"
            )
