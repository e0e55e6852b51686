"""Slots, candidates, verdicts and decisions: the one mechanism by which hardware is chosen.

A slot is a named question with a typed specification. Platforms and kernel packs offer
candidates; each answers a specification with a verdict. `Selector.choose` keeps every decision,
so that it can be printed. Selection happens while a model is built; nothing here runs per step.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from hotshoe.errors import EngineError, SelectionError, UserError
from hotshoe.foreign import ForeignError, cause_of, foreign
from hotshoe.lazy import resolve_lazy
from hotshoe.patience import patience
from hotshoe.platform import DeviceFacts
from hotshoe.slots.claims import Requires, judged_by_claims
from hotshoe.slots.contract import shortcoming
from hotshoe.slots.faults import Built, Owner, Owners
from hotshoe.slots.results import Result
from hotshoe.slots.show import in_words
from hotshoe.slots.sizes import linear_bytes, reference_bytes
from hotshoe.slots.specs import KVLayout, LinearSpec
from hotshoe.slots.verdict import REFERENCE, Decision, Verdict, accept, refuse
from hotshoe.slots.versions import younger_fields
from hotshoe.suggest import did_you_mean

#: Chosen for a block that nobody serves as one: the layer makes it of other slots' operations.
COMPOSED = "composed"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation of a slot.

    Attributes:
        slot: The slot's name.
        name: Unique within the slot, such as `native`.
        supports: Judges a specification on a device; must not raise and must not touch the device.
            Or a lazy reference `"module:attribute"` to that function, imported when it is asked.
        build: Makes the operation for an accepted specification: `build(spec, facts)`, or a lazy
            reference, imported only when chosen.
        batch_invariant: Claims that a row's result does not depend, to the last bit, on what else
            is in the batch. Conformance tests the claim.
        layout: For attention alone: `layout(spec, facts)` is the cache layout that the operation
            will read, said without building it, so that it is known of devices that are not here.
            A reference "module:attribute" is imported when it is asked.
        hook_api: The hook version that its package was built for. Core fills it in.
        package: The distribution that it comes with, and its version. Core fills it in.
        tolerance: The largest error that it claims, as a share of what the conformance kit allows
            for the type; 0 claims the reference's very bits. Conformance tests the claim.
        features: For slots that ask by features (`Slot.features`): those that it has. It is not
            asked for a specification with another one.
        requires: What it needs of the device; where that is missing, it is not asked.
        weight_bytes: `weight_bytes(spec, facts)` is what a matrix takes as its operation holds it,
            for a `LinearSpec`; None for what `hotshoe.slots.sizes.linear_bytes` says.
    """

    slot: str
    name: str
    supports: Callable[[Any, DeviceFacts], Verdict] | str
    build: Callable[[Any, DeviceFacts], Any] | str
    batch_invariant: bool = False
    layout: Callable[[Any, DeviceFacts], KVLayout] | str | None = None
    hook_api: int | None = None
    package: str = "core"
    tolerance: float = 1.0
    features: frozenset[str] = frozenset()
    requires: Requires | None = None
    weight_bytes: Callable[[LinearSpec, DeviceFacts], int] | None = None

    def declared_layout(self, spec: Any, facts: DeviceFacts) -> KVLayout | None:
        """Return the layout that it says it reads; None where it does not say."""
        if self.layout is None:
            return None
        say: Callable[[Any, DeviceFacts], KVLayout] = resolve_lazy(self.layout)
        return say(spec, facts)

    def ask(self, spec: Any, facts: DeviceFacts) -> Any:
        """Return what it says to a specification, which may be anything at all.

        One that asks for something younger than the candidate is refused in its name: it would
        overlook the field, and say yes to what it does not do.
        """
        younger = [] if self.hook_api is None else younger_fields(spec, self.hook_api)
        if younger:
            field, since = younger[0]
            return refuse(
                f"it was built for hook API {self.hook_api} and does not know {field}, which came "
                f"with {since}; install a version of its package for hook API {since}"
            )
        return resolve_lazy(self.supports)(spec, facts)


@dataclass(frozen=True, slots=True)
class Slot:
    """A named question. All that core and the conformance kit know of a slot is in its record.

    Attributes:
        spec_type: The specification, a frozen dataclass.
        reference: The lazy path of the plain implementation, `build(spec, facts)`.
        doc: Its job in a few words.
        composed_of: Of a whole block, the slots that serve it where no candidate does so at once.
        contract: The hook version with which its specification, its call signature or what its
            operations are promised last changed; a candidate that was built for an older one is
            not asked.
        results: The tensors that a call returns, in order, of the specification and the rows of its
            first argument; None, calls are not checked.
        step_bytes: Bytes that a decode step of one sequence moves through the operation, of the
            specification and the sequence's length.
        matrices: The matrices that the operation holds, of the specification.
        table_bytes: Bytes of the tables that it looks up, of the specification.
        reference_supports: Judges a specification for the reference, or a lazy path; default: it
            computes every one.
        needs: Methods, and `layout`, that an operation has beside being called, as its signature
            says; one that lacks them counts as not built.
        outside: It is called beside steps, for them, or in steps that are never recorded; a
            recording holds it only where its operation asks for that (`RecordableSampleOp`).
        reference_waits: Its reference waits for the device, so a step with it is not recorded.
        alone: Lazy path of what wraps a reference so that no row depends on its neighbors, for
            `--batch-invariant`; None where nothing does, and the reference is refused then.
        features: Names what a specification has beyond a plain one. A candidate that does not list
            all of it is refused, so a new feature needs no candidate to know it.
        suite: Of a plugin's slot, the lazy path of its conformance suite, a
            `hotshoe_conformance.cases.base.Suite`.
    """

    name: str
    spec_type: type
    reference: str
    doc: str
    composed_of: tuple[str, ...] = ()
    contract: int = 1
    results: Callable[[Any, int], Sequence[Result]] | None = None
    step_bytes: Callable[[Any, int], int] = lambda spec, length: 0
    matrices: Callable[[Any], tuple[LinearSpec, ...]] = lambda spec: ()
    table_bytes: Callable[[Any], int] = lambda spec: 0
    reference_supports: Callable[[Any, DeviceFacts], Verdict] | str = lambda spec, facts: accept(0)
    needs: tuple[str, ...] = ()
    outside: bool = False
    reference_waits: bool = False
    suite: str | None = None
    alone: str | None = None
    features: Callable[[Any], frozenset[str]] | None = None

    def admitted(self, candidate: Candidate) -> Candidate:
        """Return a candidate that refuses what it does not claim, or all if it knows an older
        contract."""
        built_for = candidate.hook_api
        if built_for is None or built_for >= self.contract:
            if self.features is None and candidate.requires is None:
                return candidate
            return replace(candidate, supports=judged_by_claims(candidate, self.features))
        verdict = refuse(
            f"it was built for hook API {built_for}, but slot {self.name} changed with "
            f"{self.contract}; install a version of its package for hook API {self.contract}"
        )
        return replace(candidate, supports=lambda spec, facts: verdict, layout=None)


class Selector:
    """Chooses and builds operations for one device, and remembers why.

    Args:
        slots: All slots by name.
        candidates: Everything that the platform and kernel packs offer.
        facts: The device.
        forced: Slot name to candidate names, with commas between; one of them, the best for a
            specification, may not be silently replaced by others.
        require_native: Refuse references.
        batch_invariant: Refuse candidates that do not claim batch invariance.
    """

    def __init__(
        self,
        slots: Mapping[str, Slot],
        candidates: Iterable[Candidate],
        facts: DeviceFacts,
        forced: Mapping[str, str] | None = None,
        require_native: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        #: Operations are built for these, and candidates judge by the others: alike but on paper.
        self.facts = facts
        self.judged = facts
        self.decisions: dict[tuple[str, Any], Decision] = {}
        #: How often an operation was built for a specification: how many layers have it.
        self.uses: Counter[tuple[str, Any]] = Counter()
        #: Specifications that were preferred, and why each candidate does not serve them.
        self.forgone: dict[tuple[str, Any], tuple[tuple[str, str], ...]] = {}
        self._defects: dict[tuple[str, Any, str], Verdict] = {}
        self._owners = Owners()
        self._met: set[tuple[str, str]] = set()
        self.slots = slots
        self._forced = {slot: tuple(n.split(",")) for slot, n in (forced or {}).items()}
        self._require_native = require_native
        self._batch_invariant = batch_invariant
        self._by_slot: dict[str, dict[str, Candidate]] = {
            slot.name: {c.name: c for c in _core_candidates(slot, batch_invariant)}
            for slot in slots.values()
        }
        for candidate in candidates:
            self._register(candidate)
        for slot, name in ((slot, n) for slot, names in self._forced.items() for n in names):
            if require_native and name == REFERENCE:
                raise SelectionError(f"--kernel {slot}={name} contradicts --require-native")
            if name not in self._candidates_of(slot):
                known = ", ".join(sorted(self._by_slot[slot]))
                hint = did_you_mean(name, self._by_slot[slot])
                raise SelectionError(
                    f"slot {slot} has no candidate {name!r}{hint} (candidates: {known})"
                )

    def _candidates_of(self, slot: str) -> dict[str, Candidate]:
        if slot not in self._by_slot:
            hint = did_you_mean(slot, self.slots)
            slots = ", ".join(sorted(self.slots))
            raise SelectionError(f"unknown slot {slot!r}{hint} (slots: {slots})")
        return self._by_slot[slot]

    def _register(self, candidate: Candidate) -> None:
        try:
            offered = self._candidates_of(candidate.slot)
        except SelectionError as error:
            raise SelectionError(f"candidate {candidate.name!r}: {error}") from None
        if candidate.name in (REFERENCE, COMPOSED):
            raise SelectionError(
                f"a candidate of slot {candidate.slot} may not be named {candidate.name}"
            )
        if candidate.name in offered:
            candidate = replace(candidate, supports=_refuse_twins)
        offered[candidate.name] = self.slots[candidate.slot].admitted(candidate)

    def matrix_bytes(self) -> int:
        """Return the bytes of all prepared matrices, that of tied logits among them.

        Padding, and what kernels need for themselves, are not in it.
        """
        return sum(
            count * self.held_bytes(slot, spec, self.slots[slot].matrices(spec))
            for (slot, spec), count in self.uses.items()
        )

    def held_bytes(self, slot: str, spec: Any, matrices: Iterable[LinearSpec]) -> int:
        """Return the bytes of matrices as the operation chosen for a specification holds them."""
        say = self._by_slot[slot][self.decide(slot, spec).chosen].weight_bytes
        return sum(linear_bytes(m) if say is None else say(m, self.judged) for m in matrices)

    def table_bytes(self) -> int:
        """Return the bytes of the tables that embeddings are looked up in."""
        uses = self.uses.items()
        return sum(count * self.slots[slot].table_bytes(spec) for (slot, spec), count in uses)

    def asked(self) -> dict[str, Candidate]:
        """Return each candidate that was asked, by `slot/name`; core's own not among them."""
        slots = {slot: self._by_slot[slot] for slot, _ in self.decisions}
        return {
            f"{slot}/{name}": candidate
            for slot, found in slots.items()
            for name, candidate in found.items()
            if name not in (REFERENCE, COMPOSED)
        }

    def unasked(self) -> dict[str, tuple[str, ...]]:
        """Return slots without a question, as larger slots served the blocks around them.

        Each with the decisions that served instead, and its candidates, in words.
        """
        asked = {slot for slot, _ in self.decisions}
        found: dict[str, dict[str, None]] = {}
        for (slot, _), decision in self.decisions.items():
            for part in self.slots[slot].composed_of:
                if decision.chosen != COMPOSED and part not in asked:
                    found.setdefault(part, {})[f"{decision.chosen} serves {slot} whole"] = None
        return {
            part: (*why, f"candidates: {', '.join(sorted(self._by_slot[part]))}")
            for part, why in found.items()
        }

    def decide(self, slot: str, spec: Any) -> Decision:
        """Choose for a specification, building nothing. Equal specifications are asked once.

        Raises:
            SelectionError: The forced candidate refuses, or native code is required and none fits.
        """
        key = (slot, spec)
        if key not in self.decisions:
            self.decisions[key] = self._decide(slot, spec)
        return self.decisions[key]

    def offers(self, slot: str, spec: Any) -> bool:
        """Tell whether a candidate other than the reference would serve; keeps no decision."""
        return not self.hindrance(slot, spec)

    def prefers(self, slot: str, spec: Any) -> bool:
        """Tell the same of what is preferred to another specification, and keep why not."""
        if self.offers(slot, spec):
            return True
        names = sorted(self._by_slot[slot].keys() - {REFERENCE, COMPOSED})
        asked = [(name, self._ask(name, self._by_slot[slot][name], spec)) for name in names]
        why = ((n, "--kernel names others" if v.accepted else v.reason) for n, v in asked)
        self.forgone[slot, spec] = tuple(why)
        return False

    def hindrance(self, slot: str, spec: Any) -> str:
        """Say why none but the reference would serve, "" if another would; keeps no decision."""
        try:
            decision = self._decide(slot, spec)
        except SelectionError as error:
            return str(error)
        if decision.native:
            return ""
        return _reasons(dict(decision.others)) or "the platform offers nothing for it"

    def choose(self, slot: str, spec: Any) -> Any:
        """Choose for a specification and build the operation; None for a block to be composed.

        A candidate that accepted but cannot build counts as refusing, with its cause, and the next
        one is taken.

        Raises:
            SelectionError: As for `decide`; or nobody can build it.
        """
        while True:
            decision = self.decide(slot, spec)
            name = decision.chosen
            try:
                with foreign(passing=(UserError,)):
                    operation = self._build(slot, name, spec)
            except ForeignError as failed:
                cause = f"it accepted, but could not be built: {failed}"
                if name == REFERENCE or (name,) == self._forced.get(slot):
                    message = f"slot {slot}, candidate {name}: {cause}"
                    raise SelectionError(message) from failed.__cause__
                self._defects[slot, spec, name] = Verdict(None, cause, defect=True)
                del self.decisions[slot, spec]
            else:
                self.uses[slot, spec] += operation is not None
                if operation is not None:
                    self._owners.note(operation, (slot, name), spec)
                return operation

    def _build(self, slot: str, name: str, spec: Any) -> Any:
        """Build an operation; the first one of a candidate may import and compile for long."""
        waiting = (
            nullcontext()
            if (slot, name) in self._met
            else patience(f"candidate {name} of slot {slot}")
        )
        self._met.add((slot, name))
        with waiting:
            operation = resolve_lazy(self._by_slot[slot][name].build)(spec, self.facts)
        if name != COMPOSED and (wrong := shortcoming(self.slots[slot], operation)):
            raise TypeError(wrong)
        return operation

    def fault(self, error: BaseException) -> EngineError | None:
        """Name the candidate whose operation raised an exception; None if none of them did."""
        owners = self._owners.of(error)
        if not owners:
            return None
        frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
        place = f"{frame.f_code.co_filename}:{line}"
        return self.blamed(owners, f"raised {cause_of(error)} at {place}")

    def blamed(self, owners: Sequence[Owner], did: str) -> EngineError:
        """Return an error that names candidates, their packages, and how to do without them.

        Args:
            owners: One, or several whose code is the same.
            did: What one of them did wrong, as the rest of a sentence.
        """
        slot, name = owners[0]
        plain = COMPOSED if self.slots[slot].composed_of else REFERENCE
        without = "" if name == REFERENCE else f"; --kernel {slot}={plain} does without it"
        return EngineError(
            f"{self.named(owners)} {did}; "
            f"`hotshoe conformance --platform {self.facts.platform}` tests it and what comes "
            f"before it{without}"
        )

    def named(self, owners: Iterable[Owner]) -> str:
        """Return candidates with their slots and packages, in words."""
        return " or ".join(
            f"candidate {name} of slot {slot} ({self._by_slot[slot][name].package})"
            for slot, name in owners
        )

    def built(self, operation: object) -> Sequence[Built]:
        """Return the candidates and specifications behind an operation; empty for other objects."""
        return self._owners.built(operation)

    def _ask(self, name: str, candidate: Candidate, spec: Any) -> Verdict:
        """Return a candidate's verdict; one that cannot give any refuses."""
        known = self._defects.get((candidate.slot, spec, name))
        if known is not None:
            return known
        if self._batch_invariant and not candidate.batch_invariant:
            return refuse("its results may depend on the batch, and --batch-invariant is set")
        try:
            with foreign():
                verdict = candidate.ask(spec, self.judged)
        except ForeignError as failed:
            return Verdict(None, f"supports() raised {failed}", defect=True)
        if not isinstance(verdict, Verdict):
            cause = f"supports() returned {type(verdict).__name__}, not a Verdict"
            return Verdict(None, cause, defect=True)
        return verdict

    def _decide(self, slot: str, spec: Any) -> Decision:
        offered = self._candidates_of(slot)
        verdicts = {name: self._ask(name, c, spec) for name, c in offered.items()}
        forced = self._forced.get(slot)
        asked = [
            f"{p}={','.join(self._forced[p])}"
            for p in self.slots[slot].composed_of
            if p in self._forced
        ]
        if forced is None and asked:  # else what was asked for would not be met in the block
            forced = (COMPOSED,)
            why = f"{verdicts[COMPOSED].reason}, as --kernel {' and '.join(asked)} asks for a part"
            verdicts[COMPOSED] = accept(0, why)
        if forced is not None:
            eligible = {n: verdicts[n] for n in forced}
        elif self._require_native:
            eligible = {n: v for n, v in verdicts.items() if n != REFERENCE}
        else:
            eligible = verdicts
        accepted = [(-v.score, n) for n, v in eligible.items() if v.score is not None]
        if not accepted:
            limits = {"--require-native": self._require_native}
            limits |= {"--batch-invariant": self._batch_invariant}
            limit = next((f" that {name} allows" for name, on in limits.items() if on), "")
            where = f"{limit} on {self.judged.platform}" if self._require_native else limit
            raise SelectionError(_explain_refusals(slot, spec, eligible, forced, where))
        chosen = min(accepted)[1]
        verdict = verdicts[chosen]
        others = tuple(sorted((n, v) for n, v in verdicts.items() if n != chosen))
        return Decision(slot, spec, chosen, verdict.score or 0, verdict.reason, others)


def _core_candidates(slot: Slot, batch_invariant: bool) -> list[Candidate]:
    """Return what core itself has for a slot. Where both tie, a block is composed."""
    alone = slot.alone if batch_invariant else None

    def build(spec: Any, facts: DeviceFacts) -> Any:
        operation = resolve_lazy(slot.reference)(spec, facts)
        return operation if alone is None else resolve_lazy(alone)(operation)

    claim = alone is not None
    judge, size = slot.reference_supports, reference_bytes
    found = [Candidate(slot.name, REFERENCE, judge, build, claim, weight_bytes=size)]
    if slot.composed_of:
        why = f"of {' and '.join(slot.composed_of)}"
        found.append(
            Candidate(
                *(slot.name, COMPOSED, lambda spec, facts: accept(0, why)),
                build=lambda spec, facts: None,
                batch_invariant=True,  # as far as its parts are, which are asked themselves
            )
        )
    return found


def _refuse_twins(spec: Any, facts: DeviceFacts) -> Verdict:
    cause = "two candidates have this name; disable the plugin of one with --disable-plugins"
    return Verdict(None, cause, defect=True)


def _explain_refusals(
    slot: str,
    spec: Any,
    verdicts: Mapping[str, Verdict],
    forced: Sequence[str] | None,
    limit: str,
) -> str:
    lead = (
        f"--kernel {slot}={','.join(forced)} cannot serve {in_words(spec)}"
        if forced is not None
        else f"no candidate of slot {slot}{limit} serves {in_words(spec)}"
    )
    remedy = "; leave the flag out, or use another form or --dtype" if "native" in limit else ""
    return f"{lead}: {_reasons(verdicts) or 'the platform offers none'}{remedy}"


def _reasons(verdicts: Mapping[str, Verdict]) -> str:
    return "; ".join(f"{name}: {v.reason}" for name, v in sorted(verdicts.items()))
