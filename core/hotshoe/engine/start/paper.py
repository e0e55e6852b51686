"""Models on paper: built to be asked, on a device where nothing is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hotshoe.errors import SelectionError
from hotshoe.foreign import ForeignError, foreign
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins.platforms import candidates_of
from hotshoe.slots import (
    COMPOSED,
    PLAIN_LAYOUT,
    REFERENCE,
    KVLayout,
    Selector,
    all_slots,
)

if TYPE_CHECKING:
    from hotshoe.engine.start.setup import EngineSetup


class PaperSelector(Selector):
    """Chooses by the facts of the device, and builds on "meta", where nothing is allocated.

    Args:
        setup: Whose candidates and facts are used.
        may_lack: A chosen candidate that cannot be built here is replaced by a stand-in, for its
            library belongs to another machine.
    """

    def __init__(self, setup: EngineSetup, may_lack: bool) -> None:
        config, facts = setup.config, setup.selector.facts
        super().__init__(
            all_slots(setup.plugins),
            candidates_of(setup.platform, setup.plugins),
            facts,
            forced=config.kernel,
            require_native=config.require_native,
            batch_invariant=config.batch_invariant,
        )
        self.facts = replace(facts, device="meta")
        self._may_lack = may_lack
        self.unbuilt: dict[str, dict[str, None]] = {}

    def choose(self, slot: str, spec: Any) -> Any:
        """See `Selector.choose`.

        Raises:
            SelectionError: Nobody can serve what is asked for.
        """
        if not self._may_lack:
            return super().choose(slot, spec)
        decision = self.decide(slot, spec)
        candidate = self._by_slot[slot][decision.chosen]
        self.uses[slot, spec] += decision.chosen != COMPOSED
        try:
            with foreign():
                return resolve_lazy(candidate.build)(spec, self.facts)
        except ForeignError as failed:
            if decision.chosen == REFERENCE:
                error = failed.__cause__
                raise SelectionError(f"slot {slot}: {error}") from error
            cause = str(failed).partition(";")[0]
            self.unbuilt.setdefault(cause, {})[f"{slot}/{decision.chosen}"] = None
            return _StandIn(candidate.declared_layout(spec, self.judged) or PLAIN_LAYOUT)


@dataclass(frozen=True, slots=True)
class _StandIn:
    """In the place of an operation whose library is not here."""

    layout: KVLayout

    def nbytes(self) -> int:
        return 0

    def run(self, *arguments: object) -> None:
        raise AssertionError("nothing runs on paper")

    load = load_gate_up = load_down = all_reduce = prepare = run
