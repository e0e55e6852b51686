"""Falcon-H1, Bamba, Granite 4, Mamba 2: sizes as published, where factors go, bad values named."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError

SMALL = {"mamba_n_heads": 4, "mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_d_state": 8}
BAMBA = {"mamba_n_heads": 4, "mamba_d_state": 8}
MAMBA = {"num_heads": 4, "head_dim": 64, "state_size": 8, "n_groups": 1}


def parameters(ctx):
    return sum(math.prod(weight.shape) for weight in ctx.weights.expected.values())


def specs(ctx, wanted):
    return [spec for slot, spec in ctx.selector.decisions if slot == wanted]


def kinds(ctx):
    return [layer.cache_spec.kind for layer in ctx.cache_layers]


def test_published_parameters(build_family):
    """Mamba 2 of 2.7 billion, as published, and whatever transformers makes of its defaults."""
    sizes = {"hidden_size": 2560, "vocab_size": 50288, "num_heads": 80, "n_groups": 1}
    mamba = build_family("Mamba2", sized=False, tie_word_embeddings=True, **sizes)
    assert parameters(mamba) == 2_702_599_680
    for family, values in (
        ("Bamba", {"attn_layer_indices": [9, 18, 27]}),
        ("FalconH1", {"mamba_d_ssm": 4096, "mamba_n_heads": 64}),
    ):
        config = getattr(transformers, f"{family}Config")(**values)
        with torch.device("meta"):
            theirs = getattr(transformers, f"{family}ForCausalLM")(config)
        ours = build_family(family, sized=False, **values)
        assert parameters(ours) == sum(p.numel() for p in theirs.parameters())


def test_which_layers_attend(build_family):
    assert kinds(build_family("FalconH1", **SMALL)) == ["full", "state"] * 2
    assert kinds(build_family("Bamba", **BAMBA, attn_layer_indices=[1])) == ["state", "full"]
    types = {"layer_types": ["attention", "mamba"]}  # as files of Granite 4 spell them
    assert kinds(build_family("GraniteMoeHybrid", **BAMBA, **types)) == ["full", "state"]
    assert kinds(build_family("Mamba2", **MAMBA)) == ["state", "state"]


def test_factors(build_family):
    ctx = build_family(
        "FalconH1",
        **SMALL,
        key_multiplier=0.5,
        embedding_multiplier=3.0,
        mlp_multipliers=[0.7, 0.25],
    )
    assert {spec.scale for spec in specs(ctx, "attention")} == {0.5 * 16**-0.5}
    assert [spec.scale for spec in specs(ctx, "embedding")] == [3.0]
    assert {spec.residual_scale for spec in specs(ctx, "add_rms_norm")} == {1.0, 0.25}
    assert not specs(ctx, "gated_mlp")  # whose gate nobody scales


def test_norms(build_family):
    found = [
        specs(build_family("FalconH1", **SMALL, **values), "state_space")[0].norm
        for values in (
            {},
            {"mamba_rms_norm": True},
            {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        )
    ]
    assert found == ["none", "before", "after"]


BAD = [
    ("FalconH1", {**SMALL, "mamba_d_ssm": 30}, "mamba_n_heads is 4.*30 channels"),
    ("FalconH1", {**SMALL, "mamba_d_head": 9}, "mamba_d_head is 9.*32 channels for 4"),
    ("FalconH1", {**SMALL, "mamba_n_groups": 3}, "mamba_n_groups is 3.*4 heads"),
    ("FalconH1", {**SMALL, "mamba_d_conv": 1}, "mamba_d_conv is 1"),
    ("FalconH1", {**SMALL, "ssm_multipliers": [1.0] * 4}, "ssm_multipliers.*5 numbers"),
    ("FalconH1", {**SMALL, "mlp_multipliers": ["1", 2]}, "mlp_multipliers.*2 numbers"),
    ("FalconH1", {**SMALL, "lm_head_multiplier": 0}, "lm_head_multiplier is 0"),
    ("FalconH1", {**SMALL, "hidden_act": "gelu"}, "hidden_act is 'gelu'.*silu"),
    ("Bamba", {**BAMBA, "attn_layer_indices": [2]}, "attn_layer_indices.*2 layers"),
    ("Bamba", {**BAMBA, "attn_layer_indices": 1}, "attn_layer_indices is 1"),
    ("Bamba", {**BAMBA, "layer_types": ["mamba", "attention"]}, "layer_types.*knows only"),
    ("GraniteMoeHybrid", {**BAMBA, "layer_types": ["mamba", "window"]}, "layer_types.*knows only"),
    ("GraniteMoeHybrid", {**BAMBA, "layer_types": ["mamba"]}, "layer_types.*each of 2 layers"),
    ("GraniteMoeHybrid", {**BAMBA, "num_experts_per_tok": 9}, "num_experts_per_tok is 9.*8 exp"),
    ("Mamba2", {**MAMBA, "head_dim": 7}, "head_dim is 7"),
    ("Mamba2", {**MAMBA, "time_step_limit": [1.0, 0.5]}, "time_step_limit.*ascending"),
    ("Mamba2", {**MAMBA, "time_step_limit": 3}, "time_step_limit is 3.*two numbers"),
    ("Mamba2", {**MAMBA, "state_size": 0}, "state_size must be a positive integer"),
]


@pytest.mark.parametrize(("family", "values", "message"), BAD)
def test_bad_values_are_named(build_family, family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **values)


def test_a_limit_may_be_infinite(build_family):
    limits = [0.0, math.inf]
    ctx = build_family("Mamba2", **MAMBA, time_step_limit=limits)
    assert specs(ctx, "state_space")[0].dt_limits == (0.0, math.inf)
