"""DeepSeek: scores' temperature, the layers that are not read, and values that are refused."""

import math

import pytest
import safetensors.torch
import torch

from hotshoe import LLM, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.cli.session import describe
from hotshoe.errors import CheckpointError

DENSE = {
    "first_k_dense_replace": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 16}


def attention(ctx):
    [spec] = [spec for slot, spec in ctx.selector.decisions if slot == "mla_attention"]
    return spec


@pytest.mark.parametrize(
    ("rope", "temperature"),
    [
        (None, 1.0),
        ({**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, 0.1 * math.log(40) + 1),
        ({**YARN, "mscale": 1.0, "mscale_all_dim": 0.707}, 0.0707 * math.log(40) + 1),
        (YARN, 1.0),
        ({"type": "default", "mscale_all_dim": 1.0}, 1.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["DeepseekV2", "DeepseekV3"])
def test_temperature_of_the_scores(build_family, family, rope, temperature):
    spec = attention(build_family(family, **DENSE, rope_scaling=rope, rope_theta=1e4))
    assert spec.scale == pytest.approx(24**-0.5 * temperature**2)


def test_pairs_are_neighbors_unless_the_file_says_otherwise(build_family):
    assert attention(build_family("DeepseekV2", **DENSE)).interleaved
    assert attention(build_family("DeepseekV3", **DENSE)).interleaved
    assert not attention(build_family("DeepseekV3", **DENSE, rope_interleave=False)).interleaved


def test_defaults_are_those_of_the_published_sizes(build_family):
    ctx = build_family("DeepseekV3", num_hidden_layers=1, num_key_value_heads=8)
    spec = attention(ctx)
    assert (spec.num_heads, spec.latent_dim, spec.row.channels) == (8, 512, 576)
    assert ctx.weights.expected["model.layers.0.self_attn.q_a_proj.weight"].shape == (1536, 128)


BAD = [
    ({"kv_lora_rank": 0}, "kv_lora_rank must be a positive integer, not 0"),
    ({"q_lora_rank": "24"}, "q_lora_rank must be a positive integer, not '24'"),
    ({"qk_rope_head_dim": 7}, "head_dim rotates 7 of 7 channels"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"v_head_dim": None}, "lacks 'v_head_dim'"),
    ({"first_k_dense_replace": -1}, "first_k_dense_replace.*integer of at least 0"),
    ({"rope_scaling": {**YARN, "mscale_all_dim": "x"}}, "mscale_all_dim.*'x'"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=str)
@pytest.mark.parametrize("family", ["DeepseekV2", "DeepseekV3"])
def test_bad_values_are_named(build_family, family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **{**DENSE, **values})


MIXED = {**DENSE, "first_k_dense_replace": 1, "n_routed_experts": 8, "moe_intermediate_size": 24}
BAD_EXPERTS = [
    ("DeepseekV3", {"topk_method": "greedy"}, "topk_method.*noaux_tc"),
    ("DeepseekV3", {"scoring_func": "softmax"}, "scoring_func.*sigmoid"),
    ("DeepseekV3", {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
    ("DeepseekV3", {"n_group": 3}, "n_routed_experts is 8.*3 equal groups"),
    ("DeepseekV2", {"topk_method": "noaux_tc", "num_experts_per_tok": 2}, "topk_method.*greedy"),
    ("DeepseekV2", {"norm_topk_prob": True, "num_experts_per_tok": 2}, "norm_topk_prob"),
    ("DeepseekV2", {}, "num_experts_per_tok"),
    (
        "DeepseekV2",
        {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 3},
        "topk_group is 3.*2 groups",
    ),
]


@pytest.mark.parametrize(("family", "values", "message"), BAD_EXPERTS, ids=str)
def test_experts_that_are_chosen_otherwise_are_refused(build_family, family, values, message):
    groups = {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 2}
    given = {**MIXED, **(groups if family == "DeepseekV3" else {}), **values}
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **given)


def test_experts_come_behind_the_dense_layers(build_family):
    groups = {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 2}
    names = build_family("DeepseekV3", **MIXED, **groups, num_hidden_layers=3).weights.expected
    assert "model.layers.0.mlp.gate_proj.weight" in names
    for i in (1, 2):
        assert f"model.layers.{i}.mlp.experts.7.down_proj.weight" in names
        assert f"model.layers.{i}.mlp.gate.e_score_correction_bias" in names
        assert f"model.layers.{i}.mlp.shared_experts.up_proj.weight" in names
    dense = {**MIXED, "n_routed_experts": None}
    names = build_family("DeepseekV3", **dense, num_hidden_layers=3).weights.expected
    assert not any("experts" in name for name in names)


def test_layers_that_predict_further_tokens_are_counted(variants, checkpoints, tmp_path):
    variant = variants["deepseek-v3"]
    made = checkpoints.get(variant)
    for file in made.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    further = {
        "model.layers.3.eh_proj.weight": torch.zeros(2, 2),
        "model.layers.3.self_attn.o_proj.weight": torch.zeros(2, 2),
    }
    safetensors.torch.save_file(further, tmp_path / "further.safetensors")
    (tmp_path / "model.safetensors").rename(tmp_path / "first.safetensors")
    config = EngineConfig(
        model=str(tmp_path), skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 20
    )
    with LLM(config=config) as llm:
        lines = [line for line in describe(llm) if "unused weights" in line]
        [result] = llm.generate(
            [TokensPrompt([5, 6, 7])], SamplingParams(temperature=0.0, max_tokens=4)
        )
    assert len(result.outputs[0].token_ids) == 4
    made.assert_greedy([5, 6, 7], result.outputs[0].token_ids)
    [line] = lines
    assert "unused weights 2 tensors of layers that predict further tokens" in line


def test_tensors_behind_those_layers_are_unknown(build_family):
    table = build_family("DeepseekV3", **DENSE).weights
    assert not table.wants("model.layers.2.eh_proj.weight")
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.eh_proj\.weight"):
        table.wants("model.layers.3.eh_proj.weight")
    table = build_family("DeepseekV3", **DENSE, num_nextn_predict_layers=0).weights
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.eh_proj\.weight"):
        table.wants("model.layers.2.eh_proj.weight")
