"""Planted defects of packages: plugins, platforms, weight formats and communicators.

Each says who has to be named and what has to be said, to whoever starts an engine or the kit. With
`test_planted` these are the list of planted defects.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hotshoe.errors import HotshoeError
from hotshoe.layers import OnlineFormat, Storage
from hotshoe.platform import Absent, Available, Broken, DeviceFacts, Platform
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint
from hotshoe.plugins.platforms import blaming, candidates_of, choose_platform, list_platforms
from hotshoe.slots import (
    REFERENCE,
    SLOTS,
    Candidate,
    CommunicatorSpec,
    NormSpec,
    QuantSpec,
    Selector,
    accept,
    refuse,
)
from hotshoe.slots.reference.communicator import Communicator
from hotshoe.slots.reference.linear import quantize_weight
from hotshoe.slots.reference.norm import build_norm
from hotshoe_conformance.cases.base import HOST, cases
from hotshoe_conformance.cases.communicator import SUITE
from hotshoe_conformance.formats import prove_formats
from hotshoe_conformance.kit import Kit, Options
from hotshoe_conformance.rank import Member
from hotshoe_conformance.ranks import joined


class Chip(Platform):
    """A platform with nothing wrong."""

    name = "chip"

    def probe(self) -> Any:
        return Available(1)

    def facts(self) -> Any:
        return DeviceFacts("chip", "cpu", "Chip", "v1", 1 << 30, 1)


def plugin(platforms: Mapping[str, Any] | None = None, **attributes: Any) -> Any:
    """Make a plugin's class, of this hook version unless told otherwise."""

    @hookimpl
    def hotshoe_platforms(self: Any) -> Any:
        return platforms or {"chip": Chip}

    own = {"HOTSHOE_HOOK_API": HOOK_API, "hotshoe_platforms": hotshoe_platforms}
    return type("Plugin", (), {k: v for k, v in (own | attributes).items() if v is not None})


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: Any) -> Any:
        raise error

    return fail


def said_at_start(points: list[EntryPoint], name: str = "auto") -> str:
    """Start as far as a platform and its candidates; return what went wrong, or was remarked."""
    plugins = PluginManager(points)
    try:
        platform = choose_platform(plugins, name)
        with blaming(platform.name):
            platform.facts()
            candidates_of(platform, plugins)
    except HotshoeError as error:
        return str(error)
    return "; ".join(filter(None, (r.error or r.warning for r in plugins.records)))


def vendor(loaded: Any) -> EntryPoint:
    return EntryPoint("vendor", "vendor-kernels", "1.2", loaded)


def chip(**methods: Any) -> Any:
    """Make a plugin's class whose platform has other methods."""
    return plugin({"chip": type("Chip", (Chip,), methods)})


LOST = OSError("libvendor.so.6: cannot open shared object file")
UNMARKED = plugin(hotshoe_candidates=lambda self, platform: [])
#: What is wrong: entry points, and what has to be said, the culprit among it.
STARTS: dict[str, tuple[list[EntryPoint], tuple[str, ...]]] = {
    "fails at import": ([vendor(raising(ImportError("no libvendor")))], ("vendor", "no libvendor")),
    "exits at import": (
        [vendor(raising(SystemExit(3)))],
        ("plugin vendor is broken", "SystemExit"),
    ),
    "older hook version": (
        [vendor(plugin(HOTSHOE_HOOK_API=HOOK_API - 2))],
        ("vendor", "upgrade its package"),
    ),
    "younger hook version": (
        [vendor(plugin(HOTSHOE_HOOK_API=HOOK_API + 1))],
        ("vendor", "upgrade hotshoe"),
    ),
    "no hook version": (
        [vendor(plugin(HOTSHOE_HOOK_API=None))],
        ("vendor", "does not say for which hook API"),
    ),
    "misspelt hook": (
        [vendor(plugin(hotshoe_platfroms=lambda self: {}))],
        ("vendor", "did you mean hotshoe_platforms?"),
    ),
    "unmarked hook": ([vendor(UNMARKED)], ("vendor", "is not marked")),
    "a hook that raises": (
        [vendor(plugin(hotshoe_platforms=hookimpl(lambda self: 1 // 0)))],
        ("vendor", "it failed in hotshoe_platforms: ZeroDivisionError"),
    ),
    "a hook that returns a list": (
        [vendor(plugin(hotshoe_platforms=hookimpl(lambda self: ["chip"])))],
        ("vendor", "it returned list"),
    ),
    "two plugins of one name": (
        [vendor(plugin()), EntryPoint("vendor", "other", "3", plugin())],
        ("vendor-kernels", "other"),
    ),
    "two platforms of one name": (
        [vendor(plugin()), EntryPoint("second", "other", "3", plugin())],
        ("vendor-kernels 1.2", "other 3", "both offer 'chip'"),
    ),
    "a platform of another name": (
        [vendor(plugin({"chip": type("C", (Chip,), {"name": "ship"})}))],
        ("chip", "calls itself 'ship'"),
    ),
    "no such platform module": (
        [vendor(plugin({"chip": "no_such_module:Chip"}))],
        ("chip: ModuleNotFoundError",),
    ),
    "probe raises": ([vendor(chip(probe=raising(LOST)))], ("chip: OSError: libvendor",)),
    "probe returns a bool": (
        [vendor(chip(probe=lambda self: True))],
        ("chip: probe() returned bool",),
    ),
    "broken driver": (
        [vendor(chip(probe=lambda self: Broken("driver 1 is too old")))],
        ("chip: driver 1 is too old", "--platform NAME"),
    ),
    "absent hardware": (
        [vendor(chip(probe=lambda self: Absent("no such card")))],
        ("chip: no such card",),
    ),
    "facts raise": (
        [vendor(chip(facts=raising(LOST)))],
        ("platform chip is defective: OSError: libvendor", "test_planted_packages.py:"),
    ),
    "candidates raise": (
        [vendor(chip(candidates=raising(LOST)))],
        ("platform chip is defective: OSError: libvendor", "test_planted_packages.py:"),
    ),
    "a string for a candidate": (
        [vendor(chip(candidates=lambda self: ["norm"]))],
        ("plugin vendor offers 'norm', which is no Candidate",),
    ),
}


@pytest.mark.parametrize("what", STARTS)
def test_a_package_that_is_wrong(what: str) -> None:
    points, words = STARTS[what]
    found = said_at_start(points)
    for word in words:
        assert word in found


def test_a_platform_whose_facts_are_none_has_a_broken_row() -> None:
    plugins = PluginManager([vendor(chip(facts=lambda self: {"name": "Chip"}))])
    [status] = list_platforms(plugins)
    assert (status.name, status.distribution) == ("chip", "vendor-kernels")
    assert isinstance(status.detection, Broken)
    assert "facts() returned dict, not DeviceFacts" in status.detection.cause


NORM = NormSpec(64, 1e-6, "float32")


def offer(build: Any = build_norm, **fields: Any) -> Candidate:
    return Candidate(
        "rms_norm", "mine", fields.pop("supports", lambda s, f: accept(5)), build, **fields
    )


#: What is wrong: candidates of a norm, and the reason that the decision prints for `mine`.
DECIDED: dict[str, tuple[list[Candidate], str]] = {
    "build raises": ([offer(raising(LOST))], "could not be built: OSError: libvendor.so.6"),
    "build exits": ([offer(raising(SystemExit(1)))], "could not be built: SystemExit: 1"),
    "build gives None": ([offer(lambda s, f: None)], "could not be built: TypeError"),
    "no such module": ([offer("no_such:f")], "could not be built: ModuleNotFoundError"),
    "verdict raises": ([offer(supports=raising(LOST))], "supports() raised OSError"),
    "verdict is None": ([offer(supports=lambda s, f: None)], "supports() returned NoneType"),
    "an empty refusal": ([offer(supports=lambda s, f: refuse(""))], "supports() raised ValueError"),
    "twins": ([offer(), offer()], "two candidates have this name"),
    "older contract": ([offer(hook_api=0)], "it was built for hook API 0"),
}


@pytest.mark.parametrize("what", DECIDED)
def test_a_candidate_that_cannot_serve(what: str) -> None:
    """The reference serves, and the decision says in the candidate's name why."""
    candidates, words = DECIDED[what]
    selector = Selector(SLOTS, candidates, HOST)
    selector.choose("rms_norm", NORM)
    decision = selector.decide("rms_norm", NORM)
    assert decision.chosen == REFERENCE
    assert words in dict(decision.others)["mine"].reason


def test_a_name_that_core_keeps_for_itself() -> None:
    with pytest.raises(HotshoeError, match="slot rms_norm may not be named reference"):
        Selector(
            SLOTS, [Candidate("rms_norm", REFERENCE, lambda s, f: accept(1), build_norm)], HOST
        )


DECLARED: dict[str, tuple[dict[str, Any], str]] = {
    "no memory": ({"memory_bytes": 0}, "facts().memory_bytes is not positive"),
    "no units": ({"compute_units": 0}, "facts().compute_units is not positive"),
    "features of numbers": ({"features": frozenset({8})}, "features is not a frozenset of strings"),
    "another platform's": ({"platform": "cpu"}, "facts().platform is 'cpu', not 'mine'"),
}


@pytest.mark.parametrize("what", DECLARED)
def test_facts_that_cannot_be(installed, what: str) -> None:
    fields, words = DECLARED[what]
    facts = replace(HOST, **({"platform": "mine"} | fields))
    options = Options(quick=True, slot="sample")
    found = Kit("mine", options, installed(facts=lambda self: facts)).undeclared
    assert [defect.what for defect in found if words in defect.what]


QUANT = QuantSpec("int4", "group", group_size=64)


class Format(OnlineFormat):
    """Four bits by group; one step of it may be another's."""

    def __init__(self) -> None:
        super().__init__(Storage(QUANT))

    def canonical(self, layer: str, tensors: Any) -> Any:
        made = [quantize_weight(part, QUANT) for part in tensors["weight"]]
        return self.bent([values for values, _ in made], [scale for _, scale in made])

    def bent(self, weight: Any, scale: Any) -> Any:
        return {"weight": weight, "weight_scale": scale}


def scaled(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return lambda self, weight, scale: {"weight": weight, "weight_scale": [*map(change, scale)]}


FORMATS: dict[str, tuple[Any, str]] = {
    "scales three times too large": (scaled(lambda s: s * 3), "times as large as those of the"),
    "scales too small": (scaled(lambda s: s / 2), "times as large as those of the"),
    "scales of another row": (scaled(lambda s: s.roll(1, 0) * 4), "of the plain numbers"),
    "signs turned": (lambda self, w, s: {"weight": [-p for p in w], "weight_scale": s}, "products"),
    "columns turned": (
        lambda self, w, s: {"weight": [p.flip(1) for p in w], "weight_scale": s},
        "products",
    ),
    "no scales": (lambda self, w, s: {"weight": w}, "times as large as those of the"),
    "a tensor for a list": (lambda self, w, s: {"weight": w[0], "weight_scale": s}, "list of tens"),
    "raises": (raising(KeyError("no such layer")), "KeyError"),
}


@pytest.mark.parametrize("what", FORMATS)
def test_a_format_that_is_wrong(what: str) -> None:
    bent, words = FORMATS[what]
    kind = type("Bent", (Format,), {"bent": bent})
    own = plugin(hotshoe_quantizations=hookimpl(lambda self: {"four": kind}))
    plugins = PluginManager([vendor(own)])
    plain = Candidate(
        "linear", REFERENCE, SLOTS["linear"].reference_supports, SLOTS["linear"].reference
    )
    report = prove_formats(plugins, [plain], HOST, seed=secrets.randbelow(10**6))
    assert report.outcomes == {"--quantization four": "wrong"}
    [defect] = report.defects
    assert defect.what.startswith("--quantization four: ")
    assert words in defect.what


def group(**methods: Any) -> Any:
    return type("Mine", (Communicator,), methods)


def own(name: str) -> Callable[..., Any]:
    return getattr(Communicator, name)


#: What is wrong: a communicator, the operation that shows it, and what has to be said.
RANKS: dict[str, tuple[Any, str, str]] = {
    "a rank is left out": (
        group(all_reduce=lambda s, x, out=None: x.clone() if out is None else out),
        "all_reduce",
        "y: ",
    ),
    "a rank counts twice": (
        group(all_reduce=lambda s, x, out=None: own("all_reduce")(s, x, out).mul_(2)),
        "all_reduce",
        "y: ",
    ),
    "ranks in another order": (
        group(
            all_gather=lambda s, x, sizes=None, out=None: own("all_gather")(s, x, sizes, out).flip(
                0
            )
        ),
        "all_gather",
        "y: ",
    ),
    "a broadcast from rank 0": (
        group(broadcast=lambda s, x, source: own("broadcast")(s, x, 0)),
        "broadcast",
        "y: ",
    ),
    "pieces mixed up": (
        group(
            all_to_all=lambda s, x, a=None, b=None, out=None: own("all_to_all")(
                s, x.flip(0), a, b, out
            )
        ),
        "all_to_all",
        "y: ",
    ),
    "another tensor than out": (
        group(all_gather=lambda s, x, sizes=None, out=None: own("all_gather")(s, x, sizes)),
        "all_gather",
        "the result is another tensor than `out`",
    ),
    "no sum at all": (
        group(reduce_scatter=lambda s, x, sizes=None, out=None: x[: len(x) // s.size]),
        "reduce_scatter",
        "",
    ),
}


@pytest.mark.parametrize("what", RANKS)
def test_a_communicator_that_is_wrong(what: str, tmp_path: Path) -> None:
    kind, verb, words = RANKS[what]
    spec = CommunicatorSpec(2)
    mine = Candidate(SUITE.slot, "mine", lambda s, f: accept(1), kind)
    members = [Member(mine, spec, HOST, rank, tmp_path) for rank in range(2)]
    found = []
    with ThreadPoolExecutor(2) as pool:
        for case in cases(SUITE, (), 3, range(len(SUITE.grid(())))):
            if case.setup.spec == spec and case.setup.shape.verb == verb and not found:
                answers = list(pool.map(lambda m, case=case: m.answer(case, poison=False), members))
                defect = joined(answers).defect
                found += [defect] if defect else []
        list(pool.map(Member.close, members))
    assert found
    assert words in found[0]
