"""Models of latent attention in an engine: what their cache takes, and what they refuse."""

import json
import math
import re

import pytest
import safetensors.torch
import torch

from hotshoe import LLM, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.explain.explanation import explain
from hotshoe.errors import CheckpointError
from hotshoe_models.latent import LatentMixer

#: Of the tiny checkpoints: layers, latents and rotated channels of a token.
LAYERS, ROW = 3, 32 + 8


@pytest.fixture
def made(variants, checkpoints):
    return checkpoints.get(variants["deepseek-v3"])


def config_of(made, **options):
    values = {"kv_cache_memory_bytes": 1 << 20, "skip_tokenizer_init": True, **options}
    return EngineConfig(model=str(made.path), **values)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_token_takes_a_row_in_each_layer(made, dtype, size):
    found = explain(config_of(made, dtype=dtype, block_size=8))
    [cache] = [need for need in found.memory if need.use == "KV cache"]
    blocks, block_bytes = map(int, re.findall(r"\d+", cache.note)[:2])
    assert block_bytes == 8 * LAYERS * ROW * size
    assert cache.bytes == blocks * block_bytes
    [decision] = [d for d in found.decisions if d.slot == "mla_attention"]
    assert decision.spec.row.channels == ROW
    fate = next(f for f in found.weights if f.name.endswith("layers.0.self_attn.kv_b_proj.weight"))
    assert (fate.holder, fate.part) == (
        f"mla_attention/{decision.chosen}",
        f"weight[0:{4 * (16 + 12)}]",
    )


def test_the_allocation_is_what_explain_says(made):
    with LLM(config=config_of(made, dtype="float32", block_size=8)) as llm:
        worker = llm.engine.core.workers.main
        layers = worker._context.cache_layers
        tokens = layers[0].cache.shape[0] * 8
        assert sum(layer.cache.nbytes for layer in layers) == tokens * LAYERS * ROW * 4
        assert all(isinstance(layer.mixer, LatentMixer) for layer in worker._model.layers)


def test_a_missing_tensor_is_named(made, tmp_path):
    for file in made.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    del weights[name]
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=re.escape(f"lacks {name}")):
        LLM(config=EngineConfig(model=str(tmp_path), skip_tokenizer_init=True))


def test_ranks_of_another_size_are_named(made):
    said = r"kv_a_layernorm\.weight has shape \[32\], but config\.json means \[40\]"
    with pytest.raises(CheckpointError, match=said):
        LLM(config=config_of(made, hf_overrides={"kv_lora_rank": 40}))


BLOCK = 32


def in_blocks(weight):
    """Quantize a matrix to 8-bit floats with a scale per block; return both and what they mean."""
    rows, columns = weight.shape
    shape = -(-rows // BLOCK), -(-columns // BLOCK)
    wide = torch.zeros(shape[0] * BLOCK, shape[1] * BLOCK)
    wide[:rows, :columns] = weight
    scale = wide.view(shape[0], BLOCK, shape[1], BLOCK).abs().amax((1, 3)) / 448
    whole = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]
    values = (weight / whole).to(torch.float8_e4m3fn)
    return values, scale, values.float() * whole


def test_the_matrix_of_a_quantized_checkpoint_is_read_into_the_models_type(made, tmp_path):
    for file in made.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    meant = {}
    for name in [name for name in weights if "_proj" in name]:
        values, scale, meant[name] = in_blocks(weights[name])
        weights |= {name: values, f"{name}_scale_inv": scale}
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    values = json.loads((tmp_path / "config.json").read_text())
    values["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = EngineConfig(
        model=str(tmp_path),
        dtype="float32",
        kv_cache_memory_bytes=1 << 20,
        skip_tokenizer_init=True,
    )
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    with LLM(config=config) as llm:
        table = llm.engine.core.workers.main._context.weights
        torch.testing.assert_close(table.where(name)[0].holder.state()["weight"], meant[name])
        params = SamplingParams(temperature=0.0, max_tokens=4)
        [result] = llm.generate([TokensPrompt([5, 6, 7])], params)
    assert len(result.outputs[0].token_ids) == 4 and result.outputs[0].error is None


#: Bytes of a row of 8 bits: numbers, room for their scale, a rotated key in float32; and of a key
#: of the indexer.
NARROW = {"deepseek-v3": 3 * 80, "glm-moe-dsa": 3 * 80 + 2 * (16 + 16)}


@pytest.mark.parametrize("kind", ["fp8", "fp8_e5m2", "int8"])
@pytest.mark.parametrize("name", NARROW)
def test_rows_of_eight_bits(variants, checkpoints, name, kind):
    made = checkpoints.get(variants[name])
    prompts = [TokensPrompt([5 + i % 90 for i in range(length)]) for length in (40, 3, 40)]
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=1)
    found = []
    for dtype in ("auto", kind):
        config = config_of(made, dtype="float32", block_size=8, kv_cache_dtype=dtype)
        with LLM(config=config) as llm:
            layers = llm.engine.core.workers.main._context.cache_layers
            found.append([result.outputs[0] for result in llm.generate(prompts, params)])
            took = sum(layer.cache_spec.block_bytes for layer in layers)
    assert took == 8 * NARROW[name]
    plain, narrow = ([out.logprobs[0].logprobs[1] for out in outputs] for outputs in found)
    assert all(map(math.isfinite, narrow)) and narrow != plain  # experts and tokens may change
