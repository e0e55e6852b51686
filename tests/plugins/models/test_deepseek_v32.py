"""DeepSeek V3.2: its indexers, the memory of their keys, and values that are refused."""

import pytest
import torch

from hotshoe import EngineConfig
from hotshoe.cli.main import main
from hotshoe.engine.explain.explanation import explain
from hotshoe.errors import CheckpointError

SIZES = {
    "first_k_dense_replace": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 6,
}


def specs(ctx, slot):
    return [spec for asked, spec in ctx.selector.decisions if asked == slot]


def test_every_layer_has_an_indexer_that_turns_halves(build_family):
    ctx = build_family("DeepseekV32", **SIZES)
    kinds = [layer.cache_spec.kind for layer in ctx.cache_layers]
    assert kinds == ["index", "latent"] * 2
    [index], [sparse] = specs(ctx, "indexer"), specs(ctx, "sparse_mla_attention")
    assert (index.num_heads, index.head_dim, index.rope_dim, index.top_k) == (4, 16, 8, 6)
    assert not index.interleaved and sparse.attention.interleaved and sparse.top_k == 6
    assert not specs(ctx, "mla_attention")
    shapes = {name: wanted.shape for name, wanted in ctx.weights.expected.items()}
    prefix = "model.layers.1.self_attn.indexer."
    assert {name: shape for name, shape in shapes.items() if name.startswith(prefix)} == {
        f"{prefix}wq_b.weight": (64, 24),
        f"{prefix}wk.weight": (16, 128),
        f"{prefix}k_norm.weight": (16,),
        f"{prefix}k_norm.bias": (16,),
        f"{prefix}weights_proj.weight": (4, 128),
    }


def test_layers_may_have_the_older_name(build_family):
    older = {"layer_types": ["deepseek_sparse_attention"] * 2}
    assert specs(build_family("DeepseekV32", **{**SIZES, **older}), "indexer")


def test_weights_of_heads_are_kept_exact(build_family):
    ctx = build_family("DeepseekV32", dtype="bfloat16", **SIZES)
    [spec] = [s for s in specs(ctx, "linear") if s.out_features == 4]
    assert spec.out_dtype == "float32"


BAD = [
    ({"index_topk": 0}, "index_topk must be a positive integer, not 0"),
    ({"index_n_heads": "4"}, "index_n_heads must be a positive integer, not '4'"),
    ({"index_head_dim": 4}, "index_head_dim is 4.*rotates 8 channels of it"),
    ({"layer_types": ["full_attention"] * 2}, "layer_types is .*indexed_attention in each of 2"),
    ({"q_lora_rank": None}, "q_lora_rank"),
    ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=str)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("DeepseekV32", **{**SIZES, **values})


@pytest.fixture
def made(variants, checkpoints):
    return checkpoints.get(variants["deepseek-v3.2"])


def test_explain_says_who_chooses_and_what_keys_take(made):
    config = EngineConfig(
        model=str(made.path), dtype="float32", block_size=8, kv_cache_memory_bytes=1 << 20
    )
    found = explain(config)
    chosen = {decision.slot: decision.chosen for decision in found.decisions}
    assert {"indexer", "sparse_mla_attention"} <= set(chosen)
    [cache] = [need for need in found.memory if need.use == "KV cache"]
    assert cache.bytes % (8 * 3 * (32 + 8 + 16) * 4) == 0


def test_native_code_alone_serves_it(made, capsys):
    arguments = ["--platform", "cpu", "--require-native", "--dtype", "float32"]
    assert main(["explain", str(made.path), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    for slot in ("indexer", "sparse_mla_attention", "graph"):
        [line] = [line for line in lines if line.split()[:1] == [slot]]
        assert "native     chosen" in line


def test_fewer_tokens_than_may_be_chosen_are_all_read(variants, checkpoints, stepper_class):
    """With room for every token, nothing depends on the indexer's weights."""
    variant = variants["deepseek-v3.2"]
    stepper = stepper_class(checkpoints.get(variant).path, variant.max_model_len)
    text = torch.randint(256, (9,)).tolist()
    before = stepper.step({0: text})[0]
    for layer in stepper.model.layers:
        layer.mixer._index._weights._op.state()["weight"].neg_()
    torch.testing.assert_close(stepper.step({1: text})[1], before, rtol=1e-4, atol=1e-5)
