"""GLM-5: which layers have indexers, and how a file says so."""

import pytest

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.types.mesh import Axis

SIZES = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "first_k_dense_replace": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 6,
}


def indexed(ctx):
    names = ctx.weights.expected
    return [i for i in range(4) if f"model.layers.{i}.self_attn.indexer.wk.weight" in names]


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        ({}, [0, 1, 2, 3]),
        ({"index_topk_freq": 2}, [0, 1, 3]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, [0, 2]),
        ({"index_topk_freq": 0}, [0, 1, 2, 3]),
        ({"index_topk_pattern": "FSSF", "index_topk_freq": 2}, [0, 3]),
        ({"index_topk_pattern": ["full", "full", "shared", "shared"]}, [0, 1]),
        ({"indexer_types": ["full", "shared", "full", "shared"]}, [0, 2]),
    ],
    ids=str,
)
def test_layers_with_indexers(build_family, values, layers):
    ctx = build_family("GlmMoeDsa", **SIZES, **values)
    assert indexed(ctx) == layers
    kinds = [layer.cache_spec.kind for layer in ctx.cache_layers]
    assert kinds.count("index") == len(layers) and kinds.count("latent") == 4
    [spec] = [spec for slot, spec in ctx.selector.decisions if slot == "indexer"]
    assert spec.interleaved


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"indexer_types": ["full"] * 3}, "indexer_types is .*full or shared for each of 4 layers"),
        ({"indexer_types": ["full", "half", "full", "full"]}, "indexer_types"),
        ({"indexer_types": ["full", ["full"], "full", "full"]}, "indexer_types"),
        ({"indexer_types": 4}, "indexer_types is 4"),
        ({"index_topk_pattern": "FSXF"}, "index_topk_pattern is 'FSXF'"),
        ({"index_topk_pattern": "SFFF"}, "index_topk_pattern is 'SFFF'.*in its first layer"),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 0}, "index_skip_topk_offset is 0"),
        ({"index_topk_freq": "2"}, "index_topk_freq is '2'"),
    ],
    ids=str,
)
def test_what_says_something_else_is_refused(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("GlmMoeDsa", **SIZES, **values)


def test_a_stage_begins_with_an_indexer(variants, checkpoints, stepper_class):
    path = checkpoints.get(variants["glm-moe-dsa"]).path
    with pytest.raises(ConfigError, match=r"layers\[1\] attends .*another stage.*pipeline-layers"):
        stepper_class(path, 64, stage=Axis(1, 2), stage_layers=(1, 2))
    assert stepper_class(path, 64, stage=Axis(1, 2), stage_layers=(2, 1))
