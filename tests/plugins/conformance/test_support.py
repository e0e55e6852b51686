"""docs/reference/support.md is what the code says."""

import importlib.util
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from triton import knobs

from hotshoe.platform import DeviceFacts, Target
from hotshoe.slots import (
    PLAIN_LAYOUT,
    REFERENCE,
    AttentionSpec,
    GatedActivationSpec,
    TreeAttentionSpec,
    accept,
    refuse,
    wide_weights,
)
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_conformance.support import _glance, _Judge, page, row_name

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_support", ROOT / "tools/make_support.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    with knobs.runtime.scope():
        knobs.runtime.interpret = False  # what no interpreter runs is on the page, too
        text = tool.text()
    assert tool.PAGE.read_text(encoding="utf-8") == text, "run `make reference`"


def supports(spec: GatedActivationSpec, facts: DeviceFacts):
    if spec.activation != "silu" and facts.arch != "v2":
        return refuse("only silu")
    return accept(1) if spec.dtype != "float16" and not spec.quant else refuse("not this type")


def test_a_table(installed, offer) -> None:
    facts = [DeviceFacts("mine", "dev", f"Chip {n}", f"v{n}", 1, 1) for n in (1, 2)]
    targets = tuple(Target(f.name, f) for f in facts)
    plugins = installed(offer("gated_activation", "m:f", supports), targets=targets)
    lines = page(plugins, "head").splitlines()
    assert "| specification | Chip 1 | Chip 2 |" in lines
    assert "| activation=gelu | – | f32 bf16 |" in lines
    assert "| plain: size=64 activation=silu | f32 bf16 | f32 bf16 |" in lines
    at = lines.index("### mine: sample")
    assert lines[at + 2] == "No kernel of its own."


def test_targets_that_serve_the_same_share_a_column(installed, offer) -> None:
    facts = [DeviceFacts("mine", "dev", f"Chip {n}", f"v{n}", 1, 1) for n in (3, 4)]
    targets = tuple(Target(f.name, f) for f in facts)
    plugins = installed(offer("gated_activation", "m:f", supports), targets=targets)
    assert "| specification | every target |" in page(plugins, "head").splitlines()


def test_at_a_glance(offer) -> None:
    """Names of candidates, the highest score first; targets that have the same share a row.

    One that holds quantized weights as plain numbers multiplies no FP8.
    """

    def any_of(score: int, *chips: str):
        return lambda spec, facts: accept(score) if facts.name in chips else refuse("no such chip")

    def cache(spec, facts: DeviceFacts):
        return accept(9) if spec.kv_dtype == "float8_e4m3fn" else refuse("bytes alone")

    def plain(spec, facts: DeviceFacts):
        if spec.weight is None:
            return accept(9)
        return wide_weights.supports_rounding(lambda spec, facts: accept(9))(spec, facts)

    candidates = [
        replace(offer("attention", "m:f", any_of(1, "a", "b")), name="low"),
        replace(offer("attention", "m:f", cache), name="eight"),
        replace(offer("lora", "m:f", any_of(5, "c")), name="added"),
        replace(offer("linear", "m:f", plain), name="rounding"),
        replace(offer("attention", "m:f"), name=REFERENCE),
    ]
    by_slot = defaultdict(list)
    for candidate in candidates:
        by_slot[candidate.slot].append(candidate)
    facts = [DeviceFacts("mine", "dev", name, "v", 1, 1) for name in "abc"]
    targets = [Target(one.name, one) for one in facts]
    judges = {target.name: _Judge(target, by_slot, None) for target in targets}
    nothing = "| – " * 7
    assert _glance({"mine": judges})[-2:] == [
        f"| mine | a, b | eight, low {nothing}| eight, low | – |",
        f"| mine | c | eight {nothing}| eight | added |",
    ]


def test_rows_are_named_by_what_differs() -> None:
    base = GatedActivationSpec(64, "silu", "float32")
    assert row_name(GatedActivationSpec(64, "gelu", "bfloat16"), base) == "activation=gelu"
    assert row_name(base, base) == "plain: size=64 activation=silu"
    trees = TreeAttentionSpec(AttentionSpec(4, 2, 64, *["float32"] * 2, 16, 0.125), PLAIN_LAYOUT)
    sinking = replace(trees, attention=replace(trees.attention, sinks=True))
    assert row_name(in_dtype(sinking, "float16"), trees) == "sinks=True"
