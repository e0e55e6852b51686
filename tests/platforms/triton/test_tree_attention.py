"""Attention with trees against core's reference, node by node: shapes, steps, pieces, refusals."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from tests.platforms.triton.conftest import check_results, device_facts, drawn

from hotshoe.platform import DeviceFacts
from hotshoe.slots import PLAIN_LAYOUT, Alibi, TreeAttentionSpec
from hotshoe_conformance.cases import tree_attention as cases
from hotshoe_conformance.cases.attention import BASE, Batch
from hotshoe_conformance.cases.base import FAR, in_dtype
from hotshoe_conformance.cases.tree_attention import Trees
from hotshoe_conformance.place import poisoned
from hotshoe_triton import attention, tree_attention
from hotshoe_triton.attention import Tiling
from hotshoe_triton.device import ARCHS
from hotshoe_triton.tree_attention import TreeAttention, tiling_of

SPEC = TreeAttentionSpec(BASE, attention.LAYOUT)
SMALL = Tiling(16, 16, 4, 1, 2, 32)
VARIANTS = [
    {"head_dim": 80, "num_heads": 7, "num_kv_heads": 1},
    {"head_dim": 96, "block_size": 64},
    {"head_dim": 128, "num_kv_heads": 4},
    {"head_dim": 256, "block_size": 32},
    {"softcap": 5.0, "sinks": True},
    {"num_heads": 20, "num_kv_heads": 1},
    {"kv_dtype": "int8", "kv_scales": "token"},
    {"kv_dtype": "float8_e4m3fn", "kv_scales": "token", "dtype": "bfloat16"},
    {"kv_dtype": "float8_e5m2", "dtype": "bfloat16", "sinks": True},
]
#: Trees of no node, of some, of all tokens but one; a prompt beside them; tokens that are nobody's.
MIXED = Trees(Batch(((1, 45), (9, 30), (7, 7), (33, 40), (14, 94)), 64, 3), (0, 8, 6, 0, 11))
ONE = Trees(Batch(((9, 90),)), (8,))
MOST = Trees(Batch(((65, 130), (64, 64))), (64, 63))


def check(spec: TreeAttentionSpec, steps: Trees, facts: DeviceFacts, **options: object) -> None:
    """Compare results with those of each node alone."""
    verdict = tree_attention.supports(spec, facts)
    assert verdict.accepted, verdict.reason
    problem = drawn(cases.SUITE, spec, steps)
    with nullcontext() if steps.batch.far else poisoned():
        check_results(problem, TreeAttention(spec, facts, **options), facts)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, attention=replace(BASE, **changes)), MIXED, facts, tiling=SMALL)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", [ONE, MIXED, MOST], ids=["one", "mixed", "most"])
def test_steps_as_shipped(facts: DeviceFacts, steps: Trees, dtype: str) -> None:
    check(in_dtype(SPEC, dtype), steps, facts)


@pytest.mark.parametrize("units", [1, 200])
def test_programs_share_keys(facts: DeviceFacts, units: int) -> None:
    spec = replace(SPEC, attention=replace(BASE, sinks=True))
    check(spec, MIXED, replace(facts, compute_units=units), tiling=SMALL)


def test_more_pieces_than_are_joined_at_once(facts: DeviceFacts) -> None:
    spec = replace(SPEC, attention=replace(BASE, num_heads=1, num_kv_heads=1))
    steps, units = Trees(Batch(((3, 1100),)), (2,)), 200
    check(spec, steps, replace(facts, compute_units=units), tiling=replace(SMALL, share=16))


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    far = replace(ONE, batch=replace(ONE.batch, far=FAR))
    check(in_dtype(SPEC, "bfloat16"), far, facts)


@pytest.mark.parametrize("arch", ARCHS)
def test_tiles_are_no_larger_than_those_of_prompts(arch: str) -> None:
    facts = device_facts(arch)
    spec = in_dtype(SPEC, "bfloat16")
    rows = attention.tiling((attention.PREFILL, {}), spec.attention, ARCHS[arch]).rows
    assert tiling_of(spec.attention, facts).rows == min(rows, 64)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window": 9}, "nodes of trees have no distances"),
        ({"alibi": Alibi(4)}, "nodes of trees have no distances"),
        ({"kv_dtype": "float8_e4m3fn", "kv_scales": "tensor"}, "kv_scales of a checkpoint"),
        ({"head_dim": 288}, "head_dim 288 is not a multiple of 8 up to 256"),
        ({"v_head_dim": 32}, "v_head_dim 32 differs from head_dim 64"),
        ({"block_size": 8}, "block_size 8 is not a power of two from 16"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    spec = replace(SPEC, attention=replace(BASE, **changes))
    assert reason in tree_attention.supports(spec, device_facts("sm_90")).reason


def test_another_operations_layout_is_refused() -> None:
    verdict = tree_attention.supports(replace(SPEC, layout=PLAIN_LAYOUT), device_facts("sm_90"))
    assert verdict.reason == "layout plain is not head-major, as read here"
