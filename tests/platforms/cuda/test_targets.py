"""Facts of real parts, and what would serve a model on each of them."""

from pathlib import Path

import pytest

from hotshoe_cuda.nvml import Gpu
from hotshoe_cuda.targets import TARGETS, TUNED, describe
from hotshoe_triton.device import ARCHS, arch_of


@pytest.mark.parametrize(
    ("capability", "features"),
    [
        ((8, 0), {"bfloat16"}),
        ((8, 9), {"bfloat16", "fp8"}),
        ((9, 0), {"bfloat16", "fp8", "wgmma", "tma"}),
        ((12, 0), {"bfloat16", "fp8", "tma"}),
    ],
)
def test_features_by_generation(capability: tuple[int, int], features: set[str]) -> None:
    facts = describe(Gpu("any", "", capability, 1 << 34, 100, ""), 3)
    assert facts.features == features
    assert facts.device == "cuda:3"


def test_linked_parts_are_peers() -> None:
    assert "peers" in describe(Gpu("any", "", (9, 0), 1 << 34, 100, "", linked=True), 0).features
    assert {t.name for t in TARGETS if "peers" not in t.facts.features} == {
        "L40S",
        "GeForce RTX 5090",
    }


def test_what_a_part_is_shipped_with_can_be_compiled_without_it() -> None:
    commands = {t.name: [p.command for p in t.proofs if "--tuned" in p.command] for t in TARGETS}
    assert {name for name, found in commands.items() if found} == {"H200"}
    arguments = commands["H200"][0].split()
    file = arguments[arguments.index("--tuned") + 1]
    shipped = Path(__file__).parents[3] / file
    assert shipped.read_bytes() == (TUNED / "nvidia-h200.json").read_bytes()


def test_every_target_has_compiled_kernels() -> None:
    assert {target.facts.arch for target in TARGETS} <= set(ARCHS)
    assert len({target.name for target in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize("capability", [(8, 6), (10, 3), (12, 1)])
def test_siblings_of_a_target_have_compiled_kernels(capability: tuple[int, int]) -> None:
    facts = describe(Gpu("any", "", capability, 1 << 34, 100, ""), 0)
    assert arch_of(facts).target == 10 * capability[0] + capability[1]
