"""What becomes of each tensor: held, unused, unknown, missing; and the summary of them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hotshoe.engine.explain.fates import (
    ELSEWHERE,
    MISSING,
    UNKNOWN,
    UNUSED,
    WeightFate,
    fates,
    summary,
)
from hotshoe.layers import BuildContext, Linear, Matrix, RMSNorm
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.fixture
def ctx() -> BuildContext:
    ctx = BuildContext(Selector(SLOTS, [], FACTS), "float32", "float32", 4, 32)
    for i in range(2):
        Linear(ctx, Matrix(ctx, [(f"l.{i}.q", 4), (f"l.{i}.k", 2)], 3))
    RMSNorm(ctx, "n", 4, 1e-6)
    ctx.weights.ignore(["inv_freq"])
    ctx.weights.elsewhere([r"^far\."])
    return ctx


def test_every_tensor_has_a_fate(ctx: BuildContext, tmp_path: Path) -> None:
    held = {
        f"l.{i}.{n}.weight": torch.ones(s, 3) for i in range(2) for n, s in (("q", 4), ("k", 2))
    }
    others = ("inv_freq", "z", "far.7.weight")
    save_file(held | {name: torch.ones(1) for name in others}, tmp_path / "m.safetensors")
    found, note = fates(ctx.weights, tmp_path, "safetensors")
    assert note == ""
    by_name = {fate.name: fate for fate in found}
    assert by_name["l.1.k.weight"] == WeightFate(
        *("l.1.k.weight", (2, 3), "linear/reference", "weight[4:6]"),
        *("float32", 1, "float32, 32 bits", 4.0),
    )
    forms = {name: by_name[name].form for name in (*others, "n.weight")}
    assert forms == {
        "inv_freq": UNUSED,
        "z": UNKNOWN,
        "far.7.weight": ELSEWHERE,
        "n.weight": MISSING,
    }
    counts = {fate.name: fate.count for fate in summary(found)}
    assert counts == {
        "l.*.q.weight": 2,
        "l.*.k.weight": 2,
        "n.weight": 1,
        "inv_freq": 1,
        "z": 1,
        "far.*.weight": 1,
    }


@pytest.mark.parametrize(("kind", "said"), [("safetensors", "holds no"), ("dummy", "are random")])
def test_without_files_it_says_what_is_expected(
    ctx: BuildContext, tmp_path: Path, kind: str, said: str
) -> None:
    found, note = fates(ctx.weights, tmp_path, kind)
    assert said in note and len(found) == 5 and all(fate.holder for fate in found)
