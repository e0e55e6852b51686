"""What an engine would be made of: decisions, their reasons and the memory, without a weight.

Layers are built on PyTorch's "meta" device, so that no device is touched; with recorded facts the
answer is for a device that is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hotshoe.config import EngineConfig, ResolvedConfig
from hotshoe.engine.explain.estimate import (
    GroupUse,
    Need,
    activation_bytes,
    cache_need,
    draft_need,
    group_uses,
    paper_info,
    step_shares,
)
from hotshoe.engine.explain.fates import WeightFate, fates
from hotshoe.engine.explain.numerics import numerics
from hotshoe.engine.start.draft import draft_setup
from hotshoe.engine.start.paper import PaperSelector
from hotshoe.engine.start.setup import EngineSetup, prepare
from hotshoe.errors import ConfigError
from hotshoe.executor import Worker, WorkerInfo
from hotshoe.foreign import ForeignError, foreign
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import Available, Change, DeviceFacts, MemoryBudget, Platform, Target
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import (
    HOOK,
    blaming,
    choose_platform,
    targets_of,
)
from hotshoe.slots import (
    Candidate,
    Decision,
    SampleSpec,
    Selector,
    TransferSpec,
)
from hotshoe.slots.graph import hindering, recordable
from hotshoe.slots.sizes import TYPE_BITS
from hotshoe.types import CacheLayout

if TYPE_CHECKING:
    from hotshoe.layers import AdapterTable, BuildContext

#: Of a device's whole memory, where what is free now says nothing about the device asked about.
USABLE_SHARE = 0.9
STEPS_IN_FLIGHT = 2
#: Of a draft model beside the engine's: it gets a part of the engine's.
NO_MEMORY = MemoryBudget(0, "")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that start-up would decide.

    Attributes:
        memory: What it would take.
        caches: The cache groups, and what a request of full length takes of each.
        uses: How many layers ask each decision's question.
        shares: Each decision's share of the bytes of a decode step, at half of max_model_len.
        unbuilt: Why candidates that were chosen cannot be built on this machine, and which.
        unasked: Slots that were not asked, and why.
        forgone: Slots and forms that layers would prefer to what they have, and why each candidate
            does not take them.
        packages: The package of each candidate that was asked, by `slot/name`.
        numerics: What decides the bits of results, a line each; see `numerics`.
        weights: What becomes of each tensor of the checkpoint.
        weights_note: Why the checkpoint's files were not looked at.
    """

    config: ResolvedConfig
    facts: DeviceFacts
    changes: tuple[Change, ...]
    decisions: tuple[Decision, ...]
    memory: tuple[Need, ...] = ()
    uses: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    unbuilt: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unasked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    forgone: Mapping[tuple[str, str], Sequence[tuple[str, str]]] = field(default_factory=dict)
    weights: tuple[WeightFate, ...] = ()
    weights_note: str = ""
    caches: tuple[GroupUse, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    numerics: tuple[str, ...] = ()


def explain(
    config: EngineConfig,
    plugins: PluginManager | None = None,
    recorded: DeviceFacts | None = None,
) -> Explanation:
    """Build the model's layers, which choose their operations, and read off what they chose.

    Args:
        config: As for an engine.
        plugins: Default: those installed.
        recorded: Another device than the one that is here.

    Raises:
        UserError: The engine could not be built as asked.
    """
    if plugins is None:
        plugins = PluginManager(disabled=config.disable_plugins)
    platform = None
    if recorded is not None:
        platform = _Recorded(named_platform(config, plugins, recorded), recorded)
        config = replace(config, platform=platform.name)
    setup = prepare(config, plugins, platform=platform)
    facts = setup.selector.facts
    if setup.platform.create_worker(setup.config) is not None:
        return Explanation(setup.config, facts, setup.changes, ())
    selector = PaperSelector(setup, may_lack=recorded is not None)
    worker = replace(setup, selector=selector).torch_worker()
    ctx, model = worker.build()
    graphs = _decide_rest(selector, setup, model.vocab_size, ctx.waits)
    caches = worker.layout(ctx)
    place = setup.model_config.file or setup.model_config.path
    found, note = fates(ctx.weights, place, setup.config.load_format)
    keys = list(selector.decisions)
    shares = step_shares(selector, max(setup.config.max_model_len // 2, 1))
    return Explanation(
        setup.config,
        facts,
        setup.changes,
        tuple(selector.decisions.values()),
        (
            *_memory(setup, ctx, caches, _draft(setup), recorded is not None),
            Need("graphs", 0, graphs),
        ),
        tuple(selector.uses[key] for key in keys),
        tuple(shares.get(key, 0.0) for key in keys),
        {cause: tuple(names) for cause, names in selector.unbuilt.items()},
        selector.unasked(),
        _forgone(selector),
        tuple(found),
        note,
        group_uses(setup.config, caches),
        {name: candidate.package for name, candidate in selector.asked().items()},
        numerics(setup.config, facts, selector.decisions.values(), selector.asked()),
    )


def _decide_rest(
    selector: PaperSelector, setup: EngineSetup, vocab_size: int, waits: Sequence[str]
) -> str:
    """Decide what the runner asks for, beside the layers; return what is recorded, in words."""
    questions: list[tuple[str, Any]] = [("sample", SampleSpec(vocab_size))]
    if setup.platform.asynchronous:
        questions.append(("transfer", TransferSpec(STEPS_IN_FLIGHT, setup.config.fetches)))
    graph, said = recordable(selector, setup.config, setup.platform.asynchronous, waits)
    if graph is not None:
        questions.append(("graph", graph))
    for slot, spec in questions:
        selector.decide(slot, spec)
        selector.uses[slot, spec] += 1
    if option := hindering(setup.config):
        return f"none recorded ({option})"
    if any(d.native for d in selector.decisions.values() if d.slot == "graph"):
        return f"{said or 'recorded'}; memory that they keep is not counted"
    return said or "none recorded"


def _forgone(selector: Selector) -> dict[tuple[str, str], Sequence[tuple[str, str]]]:
    """Return why no candidate takes forms that are preferred; of several sizes the last counts."""
    from hotshoe.layers.matrix import form_of

    return {
        (slot, form_of(selector.slots[slot].matrices(spec)[0])): why
        for (slot, spec), why in selector.forgone.items()
    }


def _weight_bytes(ctx: BuildContext, selector: PaperSelector) -> int:
    """Return the bytes of matrices, tables and norms, wherever they are kept."""
    norms = sum(
        expected.shape[0] * TYPE_BITS[ctx.dtype] // 8
        for name, expected in ctx.weights.expected.items()
        if len(expected.shape) == 1 and not name.endswith(".bias")
    )
    return selector.matrix_bytes() + selector.table_bytes() + norms


@dataclass(frozen=True, slots=True)
class _Draft:
    """A draft model on paper: its weights, and what it would say once they are loaded."""

    config: ResolvedConfig
    weight_bytes: int
    info: WorkerInfo


def _draft(setup: EngineSetup) -> _Draft | None:
    """Build the layers of the draft model that the configuration names, if it names one, and core
    computes it."""
    own = draft_setup(setup)
    if own is None or own.platform.create_worker(own.config) is not None:
        return None
    selector = PaperSelector(own, may_lack=True)
    worker = replace(own, selector=selector).torch_worker()
    ctx, model = worker.build()
    weights, caches = _weight_bytes(ctx, selector), worker.layout(ctx)
    elsewhere = own.config.platform != setup.config.platform
    budget = own.platform.memory_budget(own.config).after(weights) if elsewhere else NO_MEMORY
    return _Draft(own.config, weights, paper_info(caches, model.vocab_size, budget))


def _memory(
    setup: EngineSetup,
    ctx: BuildContext,
    caches: CacheLayout,
    draft: _Draft | None,
    is_recorded: bool,
) -> tuple[Need, ...]:
    config, selector, offload = setup.config, ctx.selector, ctx.offload
    assert isinstance(selector, PaperSelector)
    uses = selector.uses
    stages = config.pipeline_parallel_size
    note = f"of the first of {stages} stages" if stages > 1 else ""
    held = _weight_bytes(ctx, selector)
    away = [] if offload is None else [Need("host memory", offload.step_bytes, offload.note())]
    weights = Need("weights", held - (offload.saved_bytes if offload else 0), note)
    activations = Need(
        "activations", activation_bytes(config, selector), f"{config.max_num_batched_tokens} tokens"
    )
    beside = draft is not None and draft.config.platform == config.platform
    places = [] if ctx.adapters is None else [_places(ctx.adapters)]
    taken = weights.bytes + (draft.weight_bytes if draft is not None and beside else 0)
    taken += sum(place.bytes for place in places)
    if is_recorded or setup.platform.measures_memory:
        whole = int(setup.selector.facts.memory_bytes * USABLE_SHARE)
        note = f"{USABLE_SHARE:.0%} of the device's memory, less weights and activations"
        budget = MemoryBudget(max(whole - taken - activations.bytes, 0), note)
    else:
        budget = setup.platform.memory_budget(config).after(taken)
    vocab = max((spec.vocab_size for slot, spec in uses if slot == "sample"), default=1)
    info, drafts = paper_info(caches, vocab, budget), list[Need]()
    if draft is not None:
        where = draft.config.model if beside else f"{draft.config.model} on {draft.config.platform}"
        shared, cache = draft_need(draft.config, draft.info, config, info)
        drafts = [Need("draft weights", draft.weight_bytes, where), cache]
        config, info = shared
    return weights, *places, *away, cache_need(config, info), *drafts, activations


def _places(table: AdapterTable) -> Need:
    """Return what places of adapters take."""
    limits = table.limits
    note = f"{limits.max_adapters} places of rank {limits.max_rank}"
    return Need("adapters", table.device.taken, note)


def named_platform(
    config: EngineConfig, plugins: PluginManager, facts: DeviceFacts | None = None
) -> Platform:
    """Return the platform that a configuration names, or facts belong to, without probing it.

    Raises:
        PluginError: There is none of that name.
        ConfigError: The facts are another platform's.
    """
    name = config.platform
    if name == "auto":
        name = facts.platform if facts is not None else choose_platform(plugins, "auto").name
    if facts is not None and facts.platform != name:
        raise ConfigError(f"the facts are of platform {facts.platform}, not of {name}")
    platform: Platform = resolve_lazy(plugins.pick("platform", name, HOOK))()
    return platform


def declared_targets(config: EngineConfig, plugins: PluginManager) -> Sequence[Target]:
    """Return the devices that the named platform was written for; of "auto", those of all.

    One that cannot be imported declares none; `hotshoe platforms` says why.
    """
    if config.platform != "auto":
        platform = named_platform(config, plugins)
        with blaming(platform.name):
            return targets_of(platform)
    found: list[Target] = []
    for _, reference in sorted(plugins.mapping(HOOK).items()):
        found += _targets_of(reference)
    return found


def _targets_of(reference: str) -> Sequence[Target]:
    try:
        with foreign():
            platform: Platform = resolve_lazy(reference)()
            return targets_of(platform)
    except ForeignError:  # `hotshoe platforms` says the cause
        return ()


class _Recorded(Platform):
    """A platform on a device that is not here: everything is its own but the facts."""

    def __init__(self, inner: Platform, facts: DeviceFacts) -> None:
        self.name = inner.name
        self.asynchronous = inner.asynchronous
        self._inner, self._facts = inner, facts

    def probe(self) -> Available:
        return Available(0)

    def facts(self) -> DeviceFacts:
        return self._facts

    def candidates(self) -> Sequence[Candidate]:
        return self._inner.candidates()

    def resolve(self, config: EngineConfig) -> Sequence[Change]:
        return self._inner.resolve(config)

    def dtype_for(self, checkpoint_dtype: str) -> tuple[str, str]:
        return self._inner.dtype_for(checkpoint_dtype)

    def take_part(self, rank: int, size: int) -> None:
        """Let there be as many of the device as are asked for, where there may be several."""
        if type(self._inner).take_part is Platform.take_part:
            super().take_part(rank, size)

    def create_worker(self, config: EngineConfig) -> Worker | None:
        return self._inner.create_worker(config)
