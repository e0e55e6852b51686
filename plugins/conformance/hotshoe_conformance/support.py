"""The page of what each platform's own kernels serve, written from verdicts on declared targets.

Every candidate is asked about every specification of the grid, for the facts that a platform
recorded of its devices; no device is needed and nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hotshoe.lazy import resolve_lazy
from hotshoe.platform import Platform, Target
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import HOOK
from hotshoe.slots import PLAIN_LAYOUT, REFERENCE, SLOTS, Candidate, KVLayout
from hotshoe.slots.show import words_of
from hotshoe.slots.wide_weights import holds_plain
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import clean, in_dtype
from hotshoe_conformance.subject import declared_layout, offered

SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
FP8_CACHE = "float8_e4m3fn"


def _eight_bits(spec: Any) -> bool:
    weight = getattr(spec, "gate_up", spec).weight
    return weight is not None and weight.format == "fp8_e4m3"


def _four_bits(spec: Any) -> bool:
    return spec.activation is not None and bool(spec.activation.format == "fp4_e2m1")


#: The table at the top: a column's name, its slot, and which specifications of the grid count.
COLUMNS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("attention", "attention", lambda spec: True),
    ("MLA", "mla_attention", lambda spec: True),
    ("sparse MLA", "sparse_mla_attention", lambda spec: True),
    ("states", "state_space", lambda spec: True),
    ("experts", "moe", lambda spec: True),
    ("FP8 products", "linear", _eight_bits),
    ("FP4 products", "linear", _four_bits),
    ("FP8 experts", "moe", _eight_bits),
    ("FP8 cache", "attention", lambda spec: bool(spec.kv_dtype == FP8_CACHE)),
    ("LoRA", "lora", lambda spec: True),
)


def page(plugins: PluginManager, head: str) -> str:
    """Return the page about every installed platform that declares targets."""
    lines = [
        "# Support",
        head,
        "",
        "What a platform's own kernels serve, by target and element type; what is missing runs on",
        "core's plain reference. Each row changes the plainest specification of its slot in the",
        "fields that it names. `hotshoe explain MODEL` says the same of a model;",
        "`hotshoe conformance` proves it, and its `--matrix` says what a machine can prove.",
        "",
        "Quantized operands are weights quantized while they load, with activations quantized by",
        "token: int8 and OCP fp8. Of forms of published checkpoints, NVFP4 and MXFP4 have rows,",
        "with x in 4-bit floats; `explain` says what serves others, and",
        "[Quantize](../how-to/quantize.md) which platforms have kernels.",
    ]
    found = {}
    for name, target in sorted(plugins.mapping(HOOK).items()):
        platform: Platform = resolve_lazy(target)()
        if platform.targets:
            found[name] = {
                target.name: _Judge(target, offered(platform, plugins, target.facts), platform)
                for target in platform.targets
            }
    lines += _glance(found)
    for name, by_target in found.items():
        lines += _platform(name, by_target)
    return "\n".join(lines) + "\n"


def _glance(found: Mapping[str, Mapping[str, _Judge]]) -> list[str]:
    """Return the table of what there is a kernel for, with the kernels' names."""
    columns = [name for name, *_ in COLUMNS]
    lines = [
        "",
        "## At a glance",
        "",
        "Candidates that take some specification of a kind, the highest score first; the first",
        "that takes a model's own specification serves. Where there is none (a dash), core's",
        "reference does; for quantized weights, a kernel of plain numbers may, which holds them as",
        "such. Libraries of others count only where they are installed; here none is.",
        "",
        f"| platform | targets | {' | '.join(columns)} |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for platform, by_target in found.items():
        cells = {name: judge.glance() for name, judge in by_target.items()}
        for names, values in _merged(cells).items():
            lines.append(f"| {platform} | {names} | {' | '.join(values.values())} |")
    return lines


def _platform(name: str, by_target: Mapping[str, _Judge]) -> list[str]:
    lines = ["", f"## {name}"]
    for slot in SLOTS:
        if SUITES[slot].among_ranks:
            continue  # decided by the libraries of the machine that asks
        cells = {n: judge.cells(slot) for n, judge in by_target.items()}
        lines += ["", f"### {name}: {slot}", ""]
        if not any(value for cell in cells.values() for value in cell.values()):
            parts = " and ".join(f"`{name}`" for name in SLOTS[slot].composed_of)
            lines.append(f"Composed of {parts}." if parts else "No kernel of its own.")
            continue
        columns = _merged(cells)
        lines += [f"| specification | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for row in next(iter(cells.values())):
            values = " | ".join(column[row] or "–" for column in columns.values())
            lines.append(f"| {row} | {values} |")
    return lines


def _merged(cells: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Give targets that serve the same one column."""
    found: dict[str, dict[str, str]] = {}
    for values in cells.values():
        names = [name for name, others in cells.items() if others == values]
        found["every target" if len(names) == len(cells) else ", ".join(names)] = values
    return found


@dataclass(frozen=True, slots=True)
class _Judge:
    """The candidates of one target."""

    target: Target
    by_slot: Mapping[str, Sequence[Candidate]]
    platform: Platform

    def cells(self, slot: str) -> dict[str, str]:
        """Return the accepted types of every row of a slot."""
        found: dict[str, dict[str, None]] = {}
        for name, spec in _rows(slot):
            row = found.setdefault(name, {})
            if self._serves(slot, self._with_layout(spec)):
                dtype = getattr(spec, "dtype", None)
                row[SHORT[dtype] if dtype else "yes"] = None
        return {name: " ".join(dtypes) for name, dtypes in found.items()}

    def glance(self) -> dict[str, str]:
        """Return the names of the candidates of every column."""
        found = {}
        for column, slot, counts in COLUMNS:
            specs = [spec for _, spec in _rows(slot) if counts(spec)]
            best = {}
            for candidate in self._own(slot):
                asked = (candidate.ask(spec, self.target.facts) for spec in specs)
                scores = [v.score for v in asked if v.score is not None and not holds_plain(v)]
                if scores:
                    best[candidate.name] = max(scores)
            names = sorted(best, key=lambda name: (-best[name], name))
            found[column] = ", ".join(names) or "–"
        return found

    def _own(self, slot: str) -> list[Candidate]:
        return [c for c in self.by_slot[slot] if c.name != REFERENCE]

    def _serves(self, slot: str, spec: Any) -> bool:
        return any(c.ask(spec, self.target.facts).accepted for c in self._own(slot))

    def _with_layout(self, spec: Any) -> Any:
        """Ask a writer of the cache about the layout that this target's attention reads."""
        if not isinstance(getattr(spec, "layout", None), KVLayout):
            return spec
        return replace(spec, layout=self._layout(getattr(spec, "attention", spec)))

    def _layout(self, writer: Any) -> KVLayout:
        base = _rows("attention")[0][1]
        names = ["dtype", "kv_dtype", "kv_scales"]
        names += ["head_dim", "v_head_dim"] if writer.v_head_dim is not None else []
        spec = replace(base, **{name: getattr(writer, name) for name in names})
        for candidate in self.by_slot["attention"]:
            layout = declared_layout(candidate, spec, self.target.facts)
            if layout is not None and candidate.ask(spec, self.target.facts).accepted:
                return layout
        return PLAIN_LAYOUT


@cache
def _rows(slot: str) -> list[tuple[str, Any]]:
    """Return the specifications of a slot's grid and their rows' names; targets share them."""
    specs = [setup.spec for setup in SUITES[slot].grid(())]
    return [(row_name(spec, specs[0]), spec) for spec in specs]


def row_name(spec: Any, base: Any) -> str:
    """Name a specification by how it differs from the plainest, its main type aside."""
    dtype = getattr(spec, "dtype", None)
    plain = base if dtype is None else in_dtype(base, dtype)
    usual = set(_words(plain))
    different = [word for word in _words(spec) if word not in usual]
    return " ".join(different) or f"plain: {' '.join(w for w in _words(base) if 'dtype' not in w)}"


def _words(spec: Any) -> list[str]:
    """Return the fields without those of defaults; attention's fields stand among them."""
    found: list[str] = []
    for word in words_of(clean(spec)):
        name, _, inner = word.partition("=(")
        found += words_of(inner[:-1]) if name == "attention" else [word]
    return [word for word in found if not word.startswith("layout=")]
