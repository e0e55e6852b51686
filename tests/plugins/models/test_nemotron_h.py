"""Nemotron-H: which block each layer has, in three spellings, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError

SIZES = {"mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "head_dim": 16}


def blocks(ctx) -> dict[str, set[str]]:
    """Return the last parts of each layer's names."""
    found: dict[str, set[str]] = {}
    for name in ctx.weights.expected:
        if ".layers." in name:
            _, _, number, *rest = name.split(".")
            found.setdefault(number, set()).add(rest[1] if rest[0] == "mixer" else rest[0])
    return found


@pytest.mark.parametrize(
    "layers",
    [
        {"hybrid_override_pattern": "M-*"},
        {"layers_block_type": ["mamba", "mlp", "attention"]},
        {"layer_types": ["linear_attention", "mlp", "full_attention"]},
    ],
)
def test_layers_have_one_block_each(build_family, layers) -> None:
    ctx = build_family("NemotronH", **SIZES, **layers, num_hidden_layers=9)
    found = blocks(ctx)
    assert found["0"] >= {"norm", "in_proj", "out_proj", "A_log"}
    assert found["1"] == {"norm", "up_proj", "down_proj"}
    assert found["2"] == {"norm", "q_proj", "k_proj", "v_proj", "o_proj"}
    assert len(found) == 3 and len(ctx.cache_layers) == 2


def test_steps_of_time_have_a_least_length(build_family) -> None:
    ctx = build_family("NemotronH", **SIZES, hybrid_override_pattern="M", time_step_min=0.25)
    (spec,) = [spec for slot, spec in ctx.selector.decisions if slot == "state_space"]
    assert spec.dt_limits == (0.25, float("inf"))
    assert (spec.norm, spec.norm_groups, spec.inner_size) == ("after", 2, 32)


def test_layers_of_experts_have_a_shared_one_and_no_gates(build_family) -> None:
    ctx = build_family("NemotronH", **SIZES, hybrid_override_pattern="E", moe_latent_size=24)
    shapes = {name: weight.shape for name, weight in ctx.weights.expected.items()}
    prefix = "backbone.layers.0.mixer."
    assert shapes[f"{prefix}experts.3.up_proj.weight"] == (7688, 24)
    assert shapes[f"{prefix}shared_experts.up_proj.weight"] == (7688, 128)
    assert shapes[f"{prefix}fc1_latent_proj.weight"] == (24, 128)
    assert not any("gate_proj" in name for name in shapes)


def test_both_spellings_of_names(build_family) -> None:
    weights = build_family("NemotronH", **SIZES, hybrid_override_pattern="M").weights
    assert weights.known_as("model.layers.0.norm.weight") == "backbone.layers.0.norm.weight"
    assert weights.known_as("backbone.norm_f.weight") in weights.expected
    assert not weights.wants("mtp.layers.0.norm.weight")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hybrid_override_pattern": "MX*"}, "hybrid_override_pattern is 'MX.'.*knows only"),
        ({"hybrid_override_pattern": "E", "mlp_bias": True}, "mlp_bias is True.*without biases"),
        ({"hybrid_override_pattern": "E", "topk_group": 2}, "topk_group is 2.*1 groups"),
        ({"layers_block_type": ["moe"], "moe_latent_size": 0}, "moe_latent_size"),
        ({"layers_block_type": [["mlp"]]}, "layers_block_type.*knows only"),
        ({"layers_block_type": 3}, "layers_block_type is 3.*a list"),
        ({}, "lacks 'layers_block_type'"),
        ({"hybrid_override_pattern": "M", "mamba_hidden_act": "gelu"}, "mamba_hidden_act.*silu"),
        ({"hybrid_override_pattern": "M", "n_groups": 3}, "n_groups is 3.*4 heads"),
        ({"hybrid_override_pattern": "-", "mlp_hidden_act": "tanh"}, "mlp_hidden_act.*relu2"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("NemotronH", **{**SIZES, **values})
