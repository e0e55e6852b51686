"""A.X K1: norms behind experts, and what published files lack or hold besides."""

import pytest

from hotshoe.errors import CheckpointError

VALUES = {
    "mlp_layer_types": ["dense", "sparse"],
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
}
NORM = "model.layers.{}.post_mlp_layernorm.weight"


def test_only_experts_have_a_norm_behind_them(build_family) -> None:
    weights = build_family("AXK1", **VALUES).weights
    assert NORM.format(1) in weights.expected
    assert NORM.format(0) not in weights.expected
    assert not weights.wants(NORM.format(0))  # which files hold all the same


def test_files_may_lack_what_moves_routers(build_family) -> None:
    weights = build_family("AXK1", **VALUES).weights
    with pytest.raises(CheckpointError) as lacking:
        weights.check_complete()
    assert "correction_bias" not in str(lacking.value)
    weights = build_family("DeepseekV3", first_k_dense_replace=1, **VALUES).weights
    assert "correction_bias" in str(weights._missing)
