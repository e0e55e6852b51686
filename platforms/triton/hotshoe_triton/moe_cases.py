"""Specifications of mixtures of experts, for `cases.py`."""

from __future__ import annotations

from dataclasses import replace

from hotshoe.slots import LinearSpec, MoeSpec, QuantSpec, RouterSpec

QWEN = MoeSpec(
    LinearSpec(2048, 1536, "bfloat16"),
    LinearSpec(768, 2048, "bfloat16"),
    128,
    8,
    "silu",
    RouterSpec(renormalize=True),
)
OSS = MoeSpec(
    LinearSpec(2880, 5760, "bfloat16", bias=True),
    LinearSpec(2880, 2880, "bfloat16", bias=True),
    32,
    4,
    "silu",
    RouterSpec(renormalize=True),
    limit=7.0,
    alpha=1.702,
    shift=1.0,
)
GROUPED = RouterSpec("sigmoid", True, 2.5, True, groups=8, groups_kept=4, group_score="top2")
MOE = {
    "128x8": QWEN,
    "32x4 clamped": OSS,
    "128x8 grouped": replace(QWEN, router=GROUPED),
    "128x8 ungated": replace(
        QWEN, gate_up=replace(QWEN.gate_up, out_features=768), activation="relu2", gated=False
    ),
}


def quantized(spec: MoeSpec, quant: QuantSpec) -> MoeSpec:
    """Return the same mixture with quantized experts."""
    return replace(
        spec, **{s: replace(getattr(spec, s), weight=quant) for s in ("gate_up", "down")}
    )
