"""Attention with trees against core's reference, node by node, over the kernel's own cache."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import PLAIN_LAYOUT, Alibi, TreeAttentionSpec
from hotshoe_conformance.cases import tree_attention as cases
from hotshoe_conformance.cases.attention import BASE, Batch
from hotshoe_conformance.cases.base import Setup, in_dtype
from hotshoe_conformance.cases.tree_attention import Trees
from hotshoe_conformance.place import Place, poisoned
from hotshoe_cpu import attention, tree_attention

VARIANTS = [
    {"head_dim": 80, "num_heads": 7, "num_kv_heads": 1},
    {"head_dim": 96, "block_size": 64},
    {"head_dim": 128, "num_kv_heads": 4},
    {"head_dim": 256, "softcap": 5.0, "sinks": True},
    {"num_heads": 40, "num_kv_heads": 2},
    {"kv_dtype": "int8", "kv_scales": "token"},
    {"kv_dtype": "float8_e5m2"},
]
MIXED = Trees(Batch(((1, 45), (9, 30), (7, 7), (33, 40), (14, 94)), 64, 3), (0, 8, 6, 0, 11))
MOST = Trees(Batch(((65, 130), (64, 64))), (64, 63))
#: A split of the keys begins among nodes that most others do not see.
SPLIT = Trees(Batch(((65, 512 + 65 - 40),)), (64,))


def tree_of(facts: DeviceFacts, changes: dict[str, object], dtype: str) -> TreeAttentionSpec:
    spec = in_dtype(TreeAttentionSpec(replace(BASE, **changes), PLAIN_LAYOUT), dtype)
    return replace(spec, layout=attention.declared_layout(spec.attention, facts))


def check(spec: TreeAttentionSpec, steps: Trees, facts: DeviceFacts) -> None:
    """Compare results with those of each node alone; nothing else is written."""
    verdict = tree_attention.supports(spec, facts)
    assert verdict.accepted, verdict.reason
    source = torch.Generator().manual_seed(torch.seed() % 2**32)
    problem, place = cases.SUITE.problem(Setup(spec, steps), source), Place("cpu")
    with poisoned():
        got = problem.call(tree_attention.TreeAttention(spec, facts), place)
    assert not place.overrun()
    found = problem.expected()["out"].check(got["out"])
    assert not found.message, found.message


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(tree_of(facts, changes, "bfloat16"), MIXED, facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", [MIXED, MOST, SPLIT], ids=["mixed", "most", "split"])
def test_steps(facts: DeviceFacts, steps: Trees, dtype: str) -> None:
    check(tree_of(facts, {}, dtype), steps, facts)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window": 9}, "nodes of trees have no distances"),
        ({"alibi": Alibi(4)}, "nodes of trees have no distances"),
        ({"kv_dtype": "float8_e4m3fn", "kv_scales": "tensor"}, "kv_scales of a checkpoint"),
        ({"head_dim": 520}, "head_dim 520 is not a multiple of 8 up to 512"),
    ],
)
def test_refusals(facts: DeviceFacts, changes: dict[str, object], reason: str) -> None:
    verdict = tree_attention.supports(tree_of(facts, changes, "float32"), facts)
    assert reason in verdict.reason


def test_another_operations_layout_is_refused(facts: DeviceFacts) -> None:
    spec = TreeAttentionSpec(BASE, PLAIN_LAYOUT)
    assert "layout plain is not cpu-" in tree_attention.supports(spec, facts).reason
