"""GPT-BigCode: one head of keys and values for all queries, or one for each."""

import pytest

from hotshoe.errors import CheckpointError

SIZES = {"n_embd": 64, "n_head": 4, "n_layer": 2}


@pytest.mark.parametrize(("shared", "heads"), [(True, 1), (False, 4)])
def test_heads_of_keys(build_family, shared, heads) -> None:
    found = build_family("GPTBigCode", multi_query=shared, **SIZES).selector.decisions
    assert {spec.num_kv_heads for slot, spec in found if slot == "attention"} == {heads}


def test_bad_values_are_named(build_family) -> None:
    with pytest.raises(CheckpointError, match=r"multi_query is 1.*true or false"):
        build_family("GPTBigCode", multi_query=1, **SIZES)
