"""What config.json may say of experts, and what is refused by its key."""

import math

import pytest

from hotshoe.errors import CheckpointError
from hotshoe_models.plugin import ARCHITECTURES
from hotshoe_models.seeing import COMPOSITES

GROUPED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
COUNT = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}


def moe_of(ctx):
    return [spec for slot, spec in ctx.selector.decisions if slot == "moe"]


def parameters(ctx):
    return sum(math.prod(weight.shape) for weight in ctx.weights.expected.values())


PUBLISHED = {
    # Counts of the safetensors indices of the published checkpoints.
    "Mixtral": (46_702_792_704, {}),
    "Qwen3Moe": (
        30_532_122_624,
        {"num_hidden_layers": 48, "head_dim": 128, "norm_topk_prob": True},
    ),
    "Olmoe": (6_919_161_856, {"intermediate_size": 1024}),
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_parameters(build_family, family):
    count, values = PUBLISHED[family]
    assert parameters(build_family(family, sized=False, dtype="bfloat16", **values)) == count


BAD = [
    ("Qwen3Moe", {**COUNT, "num_experts_per_tok": 5}, "num_experts_per_tok is 5.*has 4 experts"),
    ("Qwen3Moe", {**COUNT, "num_experts": 0}, "num_experts must be a positive integer"),
    ("Qwen3Moe", {**COUNT, "num_experts": 2**22}, "num_experts must be at most 16384"),
    ("HYV3", {"num_nextn_predict_layers": 2**40}, "num_nextn_predict_layers must be at most"),
    ("Qwen3Moe", {**COUNT, "mlp_only_layers": ["1"]}, "mlp_only_layers.*list of layer indices"),
    ("Qwen2Moe", {**COUNT, "decoder_sparse_step": 0}, "decoder_sparse_step"),
    ("Qwen2Moe", {**COUNT, "norm_topk_prob": "yes"}, "norm_topk_prob"),
    ("Mixtral", {**LOCAL, "num_experts_per_tok": 9}, "num_experts_per_tok is 9.*has 4 experts"),
    ("Mixtral", {**LOCAL, "hidden_act": "relu6"}, "hidden_act is 'relu6'"),
    ("Glm4Moe", {**GROUPED, "n_group": 3}, "n_routed_experts is 8.*3 equal groups"),
    ("Glm4Moe", {**GROUPED, "n_group": 8, "topk_group": 2}, "n_group is 8.*two best experts"),
    ("Glm4Moe", {**GROUPED, "n_group": 2, "topk_group": 3}, "topk_group is 3.*2 groups"),
    (
        "Glm4Moe",
        {**GROUPED, "n_group": 4, "topk_group": 1, "num_experts_per_tok": 3},
        "num_experts_per_tok is 3.*has 2 experts",
    ),
    ("Glm4Moe", {**GROUPED, "scoring_func": "softmax"}, "scoring_func is 'softmax'.*sigmoid"),
    ("MiniMaxM2", {**LOCAL, "scoring_func": "hash"}, "scoring_func is 'hash'.*sigmoid"),
    ("Mixtral", {**LOCAL, "scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'.*softmax"),
    ("Laguna", {"score_function": "softmax"}, "score_function is 'softmax'.*sigmoid"),
    ("Lfm2Moe", {"moe_router_activation_func": "hash"}, "activation_func is 'hash'.*sigmoid"),
    ("HYV3", {"moe_router_use_sigmoid": False}, "moe_router_use_sigmoid is False"),
    ("MiniMaxM2", {**LOCAL, "head_dim": 16, "rotary_dim": 20}, "rotary_dim is 20.*16 channels"),
    ("Olmoe", {"clip_qkv": -8.0}, "clip_qkv is -8.0.*positive"),
    ("Ernie4_5_Moe", {"moe_layer_end_index": -2}, "moe_layer_end_index is -2"),
    ("Ernie4_5_Moe", {"use_bias": True}, "use_bias is True"),
    ("Dots1", {"n_routed_experts": None}, "n_routed_experts"),
    ("GptOss", {**LOCAL, "swiglu_limit": 0}, "swiglu_limit"),
]


@pytest.mark.parametrize(("family", "values", "message"), BAD)
def test_bad_values_are_named(build_family, family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **values)


def test_layers_have_experts_where_the_file_says_so(build_family):
    ctx = build_family("Qwen3Moe", **COUNT, mlp_only_layers=[0], num_hidden_layers=3)
    names = set(ctx.weights.expected)
    assert "model.layers.0.mlp.gate_proj.weight" in names
    for i in (1, 2):
        assert f"model.layers.{i}.mlp.experts.3.up_proj.weight" in names
        assert f"model.layers.{i}.mlp.gate_proj.weight" not in names


def test_the_count_of_experts_is_read_under_every_familys_key(build_family):
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        ctx = build_family("Qwen3Moe", **{key: 6}, moe_intermediate_size=16, num_experts_per_tok=2)
        assert {spec.num_experts for spec in moe_of(ctx)} == {6}


def test_every_family_with_experts_asks_for_a_mixture(build_family):
    own = sorted(ARCHITECTURES.keys() - COMPOSITES.keys())
    found = [name for name in own if "Moe" in name or name[:4] in ("Mixt", "Dots")]
    found = [name for name in found if "Hybrid" not in name and name.endswith("ForCausalLM")]
    assert len(found) >= 8
    for name in found:
        dense = {"first_k_dense_replace": 1, "num_dense_layers": 1}
        values = {**COUNT, **LOCAL, **GROUPED, "moe_k": 2, **dense}
        assert moe_of(build_family(name.removesuffix("ForCausalLM"), **values)), name
