"""DeepSeek V4: caches, published names, values that are refused, preempted requests."""

import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError

SIZES = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 24,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "compress_ratios": [0, 4, 128, 0],
    "sliding_window": 8,
    "o_groups": 2,
    "o_lora_rank": 12,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 4,
}


def specs(ctx, slot):
    return [spec for asked, spec in ctx.selector.decisions if asked == slot]


def test_each_type_of_layer_has_its_caches(build_family):
    ctx = build_family("DeepseekV4", max_model_len=256, **SIZES)
    kept = [layer.cache_spec for layer in ctx.cache_layers]
    found = [(spec.kind, spec.window, spec.tokens_per_entry, spec.parts[0].shape) for spec in kept]
    sparse = [
        *[("window", 8, 1, (4, 64)), ("latent", None, 4, (1, 16))],  # the indexer's
        *[("window", 8, 1, (4, 16)), ("window", 8, 1, (4, 64)), ("latent", None, 4, (1, 16))],
    ]
    # A block of 4 tokens has room for one entry of the groups that end there.
    heavy = [("window", 8, 1, (4, 16)), ("window", 128, 1, (4, 32)), ("latent", None, 4, (1, 16))]
    assert found == [("window", 8, 1, (4, 16)), *sparse, *heavy]
    assert {spec.group for spec in specs(ctx, "compress")} == {4, 128}
    assert [spec.block_size for spec in specs(ctx, "indexer")] == [1]


def test_tokens_choose_experts_of_the_first_layers_alone(build_family):
    ctx = build_family("DeepseekV4", **SIZES)
    tables = [name for name in ctx.weights.expected if name.endswith("tid2eid")]
    assert tables == ["model.layers.0.ffn.gate.tid2eid"]
    assert ctx.weights.expected[tables[0]].shape == (64, 2)
    biases = [name for name in ctx.weights.expected if name.endswith("gate.bias")]
    assert biases == [f"model.layers.{i}.ffn.gate.bias" for i in (1, 2)]
    assert {spec.limit for spec in specs(ctx, "moe")} == {10.0}


def test_published_files_have_all_layers_and_other_names(variants, checkpoints, tmp_path):
    made = checkpoints.get(variants["deepseek-v4"])
    tensors = load_file(made.path / "model.safetensors")
    published = {
        name.removeprefix("model.")
        .replace("embed_tokens.", "embed.")
        .replace("hc_head.hc_", "hc_head_"): tensor
        for name, tensor in tensors.items()
    }
    assert {"embed.weight", "norm.weight", "head.weight", "hc_head_fn"} <= set(published)
    published["mtp.0.attn.norm.weight"] = torch.ones(24)
    save_file(published, tmp_path / "model.safetensors")
    for file in ("config.json", "generation_config.json"):
        (tmp_path / file).write_bytes((made.path / file).read_bytes())
    prompt = [random.randrange(256) for _ in range(21)]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [result] = llm.generate([TokensPrompt(prompt)], GREEDY)
    made.assert_greedy(prompt, result.outputs[0].token_ids)


OPTIONS = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "kv_cache_memory_bytes": 1 << 22,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=9)


def test_preempted_requests_are_computed_again(variants, checkpoints):
    """Entries are the only cache that grows with a text; there is room for few of them."""
    made = checkpoints.get(variants["deepseek-v4"])
    prompts = [[random.randrange(256) for _ in range(n)] for n in (2, 3, 4) * 3]
    options = {**OPTIONS, "block_size": 8, "kv_cache_memory_bytes": 135_000}
    params = SamplingParams(temperature=0.0, max_tokens=40)
    with LLM(str(made.path), **options) as llm:
        results = llm.generate([TokensPrompt(p) for p in prompts], params)
        assert llm.engine.core.stats().num_preemptions > 0
    for prompt, result in zip(prompts, results, strict=True):
        made.assert_greedy(prompt, result.outputs[0].token_ids)


BAD = [
    ({"num_key_value_heads": 2}, "num_key_value_heads"),
    ({"compress_ratios": [0, 4, 3]}, "compress_ratios is .*needs a list of 0, 4, 128"),
    ({"compress_ratios": [0]}, "compress_ratios is .*one entry for each of 3 layers"),
    ({"layer_types": ["full_attention"] * 3}, "layer_types is .*knows only"),
    ({"mlp_layer_types": ["moe"]}, "mlp_layer_types is .*each of 3 layers"),
    ({"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types is .*knows only hash_moe and moe"),
    ({"o_groups": 3}, "o_groups is 3"),
    ({"index_head_dim": 4}, "index_head_dim is 4.*rotates 8 channels of it"),
    ({"qk_rope_head_dim": 32}, "qk_rope_head_dim is 32.*even number of 16 channels"),
    ({"scoring_func": "softmax"}, "scoring_func"),
    ({"norm_topk_prob": False}, "norm_topk_prob"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings"),
    ({"rope_parameters": {"main": 1, "compress": {}}}, "rope_parameters.*an object for main"),
    ({"swiglu_limit": 0}, "swiglu_limit"),
    ({"hc_mult": 0}, "hc_mult"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=str)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("DeepseekV4", **{**SIZES, **values})


def test_groups_that_no_blocks_fit_are_refused(build_family):
    with pytest.raises(Exception, match="groups of 6 tokens; use a --block-size"):
        build_family("DeepseekV4", **SIZES, compress_rate_csa=6)


def test_without_files_tables_name_experts_that_there_are(variants, checkpoints):
    made = checkpoints.get(variants["deepseek-v4"])
    with LLM(str(made.path), load_format="dummy", **OPTIONS) as llm:
        [result] = llm.generate([TokensPrompt([5, 6, 7])], GREEDY)
    assert len(result.outputs[0].token_ids) == 9


def test_attention_between_pieces_of_a_recording_is_the_same(variants, checkpoints, stepper_class):
    """A layer hands over one tensor, and attention for its first tokens gives the same result."""
    variant = variants["deepseek-v4"]
    path, text = checkpoints.get(variant).path, [random.randrange(256) for _ in range(40)]
    plain, pieces = (stepper_class(path, variant.max_model_len) for _ in range(2))
    forward, calls = pieces.model.forward, []

    def recorded(hidden, batch):
        views = batch.views

        def between(q, attend, width=None):
            calls.append(q.shape)
            assert width == 4 * 24
            return attend(q.clone(), views)

        batch.between = between
        return forward(hidden, batch)

    pieces.model.forward = recorded
    for tokens in (text[:21], text[21:22], text[22:37], text[37:]):
        found, wanted = (stepper.step({0: tokens})[0] for stepper in (pieces, plain))
        torch.testing.assert_close(found, wanted)
    assert len(calls) == 4 * 4
