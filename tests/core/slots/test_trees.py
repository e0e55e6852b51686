"""Why kernels refuse trees."""

from dataclasses import replace

import pytest

from hotshoe.slots import PLAIN_LAYOUT, Alibi, AttentionSpec, TreeAttentionSpec, tree_refusal
from hotshoe.slots.reference.kv import SCALES_LAYOUT

ATTENTION = AttentionSpec(4, 2, 8, "float32", "float32", 16, 0.5)


def test_a_kernel_serves_its_own_layout() -> None:
    spec = TreeAttentionSpec(ATTENTION, PLAIN_LAYOUT)
    assert spec.dtype == "float32"
    assert tree_refusal(spec, PLAIN_LAYOUT) == ""
    assert tree_refusal(spec, SCALES_LAYOUT) == "layout plain is not scales, as read here"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window": 9}, "as window and alibi count them"),
        ({"alibi": Alibi(4)}, "as window and alibi count them"),
        ({"kv_dtype": "int8", "kv_scales": "tensor"}, "kv_scales of a checkpoint"),
    ],
)
def test_what_trees_lack(changes: dict[str, object], reason: str) -> None:
    spec = TreeAttentionSpec(replace(ATTENTION, **changes), PLAIN_LAYOUT)
    assert reason in tree_refusal(spec, PLAIN_LAYOUT)
