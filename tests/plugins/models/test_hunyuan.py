"""Hunyuan V1: lists of equal experts, a stretched base, bad values named."""

import pytest

from hotshoe.errors import CheckpointError

MOE = {"num_experts": 4, "moe_topk": 2}
ALPHA = {"type": "dynamic", "alpha": 1000.0}


def test_lists_of_equal_entries_are_one_value(build_family):
    build_family(
        "HunYuanMoEV1", num_experts=[4, 4], moe_topk=[2, 2], moe_intermediate_size=[64] * 2
    )


def test_alpha_is_no_matter_of_length(build_family):
    build_family("HunYuanDenseV1", rope_scaling=ALPHA)
    build_family("HunYuanDenseV1", rope_parameters={**ALPHA, "rope_theta": 5.0})


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("HunYuanMoEV1", {"moe_topk": [1, 2]}, r"moe_topk is \[1, 2\].*equal experts"),
        ("HunYuanMoEV1", {"moe_topk": []}, "moe_topk"),
        ("HunYuanMoEV1", {"moe_topk": 5}, "moe_topk is 5"),
        ("HunYuanMoEV1", {"moe_intermediate_size": 32}, "moe_intermediate_size is 32"),
        ("HunYuanMoEV1", {"num_shared_expert": 2}, "num_shared_expert is 2"),
        ("HunYuanMoEV1", {"num_shared_expert": [1, 2]}, "num_shared_expert"),
        ("HunYuanMoEV1", {"use_cla": True}, "use_cla is True"),
        ("HunYuanMoEV1", {"use_mixed_mlp_moe": False}, "use_mixed_mlp_moe"),
        ("HunYuanMoEV1", {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped"),
        ("HunYuanDenseV1", {"use_qk_norm": False}, "use_qk_norm is False"),
        ("HunYuanDenseV1", {"mlp_bias": True}, "mlp_bias is True"),
        ("HunYuanDenseV1", {"rope_scaling": {**ALPHA, "alpha": -1}}, "alpha is -1"),
        ("HunYuanDenseV1", {"rope_scaling": {**ALPHA, "rope_theta": "x"}}, "rope_theta is 'x'"),
        ("HunYuanDenseV1", {"rope_scaling": ALPHA, "head_dim": 2}, "head_dim is 2"),
        (
            "HunYuanDenseV1",
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            "rope_parameters.*may not scale",
        ),
    ],
)
def test_bad_values_are_named(build_family, family, values, message):
    more = MOE if family == "HunYuanMoEV1" else {}
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **{**more, **values})
