"""q, k and v that a writer has fused and quantized rank by rank, as MiMo V2.5 is published."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe_models.fused_qkv import BLOCK, block_of

OPTIONS = {
    "platform": "cpu",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_batched_tokens": 16,
    "kv_cache_memory_bytes": 1 << 21,
}
PARAMS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)


def quantized(weight, height, width):
    """Return a matrix in 8 bits and a scale for each block, block by block."""
    rows, columns = -(-len(weight) // height), -(-weight.shape[1] // width)
    numbers, scales = torch.zeros_like(weight), torch.zeros(rows, columns)
    for i in range(rows):
        for j in range(columns):
            place = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
            scales[i, j] = weight[place].abs().max() / 448.0
            numbers[place] = weight[place] / scales[i, j]
    return numbers.to(torch.float8_e4m3fn), scales


def restored(numbers, scales, height, width):
    wide = scales.repeat_interleave(height, 0)[: len(numbers)].repeat_interleave(width, 1)
    return numbers.float() * wide[:, : numbers.shape[1]]


def publish(made, path, shares, block=None):
    """Write a model whose q, k and v are fused for so many ranks, each quantized by itself.

    With a block, transformers' model gets the numbers that 8 bits stand for.
    """
    tensors, state = load_file(made.path / "model.safetensors"), made.model.state_dict()
    for i in range(made.model.config.num_hidden_layers):
        stem, fused, scales = f"model.layers.{i}.self_attn.", [], []
        own = [tensors.pop(f"{stem}{part}_proj.weight").chunk(shares) for part in "qkv"]
        back = [[], [], []]
        for parts in zip(*own, strict=True):
            one = torch.cat(parts)
            if block is not None:
                numbers, scale = quantized(one, *block)
                one = restored(numbers, scale, *block)
                scales.append(scale)
            cut = one.split([len(part) for part in parts])
            for found, part in zip(back, cut, strict=True):
                found.append(part)
            fused.append(one if block is None else numbers)
        tensors[f"{stem}qkv_proj.weight"] = torch.cat(fused)
        if block is not None:
            tensors[f"{stem}qkv_proj.weight_scale_inv"] = torch.cat(scales)
        for part, found in zip("qkv", back, strict=True):
            state[f"{stem}{part}_proj.weight"].copy_(torch.cat(found))
    config = json.loads((made.path / "config.json").read_text())
    config |= {"architectures": ["MiMoV2ForCausalLM"], "attention_projection_layout": "fused_qkv"}
    if block is not None:
        # Only the fused matrices are quantized, as this test is about them.
        kept = ["o_proj", "mlp", "lm_head"]
        config["quantization_config"] = {
            "quant_method": "fp8",
            "weight_block_size": list(block),
            "ignored_layers": kept,
        }
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


def draw(count):
    return [random.randrange(3, 256) for _ in range(count)]


@pytest.fixture
def made(variants, checkpoints, tmp_path):
    """A checkpoint of this test's own, since its model is changed."""
    from tests.plugins.models.conftest import save_tiny

    (tmp_path / "made").mkdir()
    checkpoints.get(variants["mimo-v2"])  # skips where transformers is too old
    return save_tiny(variants["mimo-v2"], tmp_path / "made", random.getrandbits(31))


@pytest.mark.parametrize("block", [None, (20, 24), (128, 128)])
def test_tokens_are_those_of_transformers(made, tmp_path, block):
    """Blocks end within heads, the last one of a share is not whole, and layers with windows have
    two kv heads in a share."""
    path = publish(made, tmp_path / "fused", 2, block)
    prompts = [draw(n) for n in (3, 18, 30)]
    with LLM(str(path), **OPTIONS) as llm:
        results = llm.generate([TokensPrompt(prompt) for prompt in prompts], PARAMS)
    for prompt, result in zip(prompts, results, strict=True):
        made.assert_greedy(prompt, result.outputs[0].token_ids)


def test_what_does_not_belong_together_is_named(made, tmp_path):
    path = publish(made, tmp_path / "fused", 2, (20, 24))
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.1.self_attn.qkv_proj.weight"
    for changed, part, message in (
        (f"{name}_scale_inv", slice(1), r"qkv_proj\.weight_scale_inv has shape \[1, 3\]"),
        (name, slice(2), r"qkv_proj\.weight has shape \[2, 64\], but config\.json means 256 rows"),
    ):
        broken = tensors | {changed: tensors[changed][part].clone()}
        save_file(broken, path / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            LLM(str(path), **OPTIONS)


def test_layouts_have_names(build_family):
    small = {"num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2}
    small |= {"moe_intermediate_size": 16, "head_dim": 24, "v_head_dim": 16}
    for layout in ("split", None):
        ctx = build_family("MiMoV2", **small, attention_projection_layout=layout)
        assert ctx.weights.decode is None
    with pytest.raises(CheckpointError, match=r"attention_projection_layout.*knows fused_qkv"):
        build_family("MiMoV2", **small, attention_projection_layout="by_heads")
    ctx = build_family("MiMoV2", **small)
    for name in (
        "visual.x",
        "audio_encoder.y",
        "speech_embeddings.0.weight",
        "model.mtp.layers.0.z",
    ):
        assert not ctx.weights.wants(name)


def test_blocks_of_scales():
    assert block_of({"weight_block_size": [64, 32]}) == (64, 32)
    for strange in (None, {}, {"weight_block_size": [0, 1]}, {"weight_block_size": "x"}):
        assert block_of(strange) == BLOCK
