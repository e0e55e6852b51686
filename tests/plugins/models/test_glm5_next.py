"""GLM-5 Next: sizes as transformers has them, groups that are chosen, streams, bad values named."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError

LAYERS = {"num_hidden_layers": 4, "mlp_layer_types": ["dense", "sparse"] * 2}
SMALL = {
    **LAYERS,
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 32,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
}


def specs(ctx, wanted):
    return [spec for slot, spec in ctx.selector.decisions if slot == wanted]


def test_parameters_are_theirs(build_family):
    config = transformers.Glm5NextTextConfig(**LAYERS, n_routed_experts=8)
    with torch.device("meta"):
        theirs = transformers.Glm5NextTextModel(config)
    ours = build_family("Glm5Next", sized=False, **LAYERS, n_routed_experts=8)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    corrections = 2 * 8  # which transformers counts as no parameters
    assert counted == sum(p.numel() for p in theirs.parameters()) + corrections


def test_caches_and_operations(build_family):
    ctx = build_family("Glm5Next", max_model_len=64, **SMALL, linear_lower_bound=-3.0)
    kinds = [layer.cache_spec.kind for layer in ctx.cache_layers]
    # Gates and keys of a group's tokens, its one key, and the latents, of the one that attends.
    assert kinds == ["state"] * 3 + ["window", "latent", "latent"]
    [made], [index], [sparse] = (
        specs(ctx, slot) for slot in ("compress", "indexer", "sparse_mla_attention")
    )
    assert (made.head_dim, made.rope_dim, made.group, made.norm_eps) == (16, 0, 16, None)
    assert (index.top_k, index.rope_dim, sparse.top_k) == (2, 0, 48)
    assert (sparse.attention.rope_dim, sparse.attention.scale) == (0, 0.25)
    [delta] = specs(ctx, "gated_delta")
    assert (delta.decay, delta.gate, delta.decay_floor) == ("channel", "sigmoid", -3.0)
    streams = specs(ctx, "hyper_connection")
    assert [spec.ends for spec in streams] == [False, True]
    assert not any("hc_head" in name for name in ctx.weights.expected)


@pytest.mark.parametrize(
    ("values", "floor"),
    [
        ({"linear_lower_bound": None}, None),
        ({"linear_attn_config": {"head_dim": 8}}, -5.0),
        ({"linear_attn_config": {"gate_lower_bound": -2.0}}, -2.0),
        ({"linear_attn_config": {"gate_lower_bound": None}}, -5.0),
        ({"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False}}, None),
        ({"linear_attn_config": {"safe_gate": False}}, -5.0),
    ],
    ids=str,
)
def test_floors_are_theirs(build_family, values, floor):
    assert transformers.Glm5NextTextConfig(**values).linear_lower_bound == floor
    [delta] = specs(build_family("Glm5Next", **SMALL, **values), "gated_delta")
    assert delta.decay_floor == floor


def test_streams_are_averaged(variants, checkpoints, stepper_class):
    """By the operation that elsewhere weighs them: each counts as much."""
    model = stepper_class(checkpoints.get(variants["glm5-next"]).path, 64).model
    streams, out = torch.randn(5, 3, 64), torch.randn(5, 64)
    factors, mixing = torch.rand(5, 3), torch.rand(5, 3, 3)
    gates = torch.cat((factors, mixing.flatten(1)), 1)
    joined = factors[..., None] * out[:, None] + mixing.mT @ streams
    for block, expected in ((None, streams), ((out, gates), joined)):
        _, mean, _ = model._leave(streams, block)
        torch.testing.assert_close(mean, expected.mean(1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"qk_rope_head_dim": 8}, "qk_rope_head_dim is 8.*rotates nothing"),
        ({"index_topk": 24}, "index_topk is 24.*whole groups of 16 tokens"),
        ({"index_kpool": 0}, "index_kpool must be"),
        ({"index_kpool_always_select_tail": False}, "always_select_tail is False"),
        ({"indexer_types": ["full", "full", "full", "shared"]}, "indexer_types is .*an indexer"),
        ({"index_topk_freq": 3}, "index_skip_topk_offset.*an indexer in each layer of attention"),
        ({"linear_lower_bound": 5.0}, "linear_lower_bound is 5.0.*below 0"),
        ({"layer_types": ["linear_attention"]}, "layer_types.*each of 4 layers"),
        ({"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy'"),
        ({"linear_attn_config": 3}, "linear_attn_config.*an object"),
        ({"hc_eps": 0}, "hc_eps is 0"),
        ({"q_lora_rank": None}, "q_lora_rank"),
    ],
    ids=str,
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Glm5Next", **{**SMALL, **values})


def test_layers_that_share_are_of_no_account_where_nothing_is_chosen(build_family):
    types = ["shared", "shared", "shared", "full"]
    [index] = specs(build_family("Glm5Next", **SMALL, indexer_types=types), "indexer")
    assert index.top_k == 2
