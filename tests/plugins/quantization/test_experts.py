"""Quantized experts through the whole engine, stacked and by name, against plain ones."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.plugins.quantization.test_checkpoints import (
    FP8,
    MX,
    PROMPTS,
    TOKENF,
    bits_and_bytes,
    chosen,
    compressed,
    difference,
    gptq_config,
    quark,
    quark_spec,
    weights,
)
from tests.plugins.quantization.writers import (
    Quantizer,
    Written,
    awq,
    eight_bits,
    fp4,
    gptq,
    looked_up,
    mxfp8,
    packed,
    row_maxima,
    signed_nibbles,
    write,
)

from hotshoe import LLM
from hotshoe.cli.explain import as_json, as_text
from hotshoe.config import EngineConfig
from hotshoe.engine.explain.explanation import explain
from hotshoe.errors import CheckpointError

OPTIONS = {"platform": "cpu", "skip_tokenizer_init": True, "max_num_seqs": 2, "max_model_len": 64}
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": None,
}
Open = Callable[..., LLM]


def save(path: Path, family: str, **values: object) -> Path:
    """Write a plain model of random numbers as transformers does."""
    named = next(n for n in (f"{family}TextConfig", f"{family}Config") if hasattr(transformers, n))
    config = getattr(transformers, named)(**{**SIZES, **values})
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if not name.endswith("norm.weight"):
                tensor.normal_(0, 1.5 * SIZES["hidden_size"] ** -0.5)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen") / "plain"
    return save(path, "Qwen3Moe", num_experts=6, moe_intermediate_size=32, norm_topk_prob=True)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a model with experts in MXFP4, and the plain one that it stands for."""
    root = tmp_path_factory.mktemp("gpt_oss")
    plain = save(root / "plain", "GptOss", num_local_experts=4, sliding_window=8)
    tensors, stored = load_file(plain / "model.safetensors"), {}
    quantize = fp4(32, "mxfp4")
    for name, tensor in list(tensors.items()):
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = tensor
            continue
        made = [quantize(expert.T.contiguous()) for expert in tensor]
        blocks = torch.stack([parts["weight_packed"] for parts, _ in made])
        stored[f"{name}_blocks"] = blocks.unflatten(2, (-1, 16)).contiguous()
        stored[f"{name}_scales"] = torch.stack([parts["weight_scale"] for parts, _ in made])
        tensors[name] = torch.stack([dense.T for _, dense in made]).contiguous()
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    (root / "stored").mkdir()
    save_file(stored, root / "stored/model.safetensors", {"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    method = {"quant_method": "mxfp4", "modules_to_not_convert": [*kept, "lm_head"]}
    config |= {"quantization_config": method}
    (root / "stored/config.json").write_text(json.dumps(config))
    return root / "stored", plain


@pytest.fixture
def open_llm() -> Iterator[Open]:
    opened: list[LLM] = []

    def start(path: Path, **options: object) -> LLM:
        opened.append(LLM(str(path), **OPTIONS | options))
        return opened[-1]

    yield start
    for llm in opened:
        llm.close()


def test_mxfp4_as_gpt_oss_has_it(gpt_oss: tuple[Path, Path], open_llm: Open) -> None:
    stored, plain = gpt_oss
    ours = open_llm(stored, dtype="float32")
    assert difference(ours, open_llm(plain, dtype="float32")) < 1e-4
    theirs = transformers.GptOssForCausalLM.from_pretrained(
        stored, quantization_config=transformers.Mxfp4Config(dequantize=True), dtype="float32"
    )
    exact = load_file(plain / "model.safetensors")["model.layers.1.mlp.experts.gate_up_proj"]
    assert torch.equal(theirs.model.layers[1].mlp.experts.gate_up_proj, exact)
    for prompt, (_, found) in zip(PROMPTS, chosen(ours), strict=True):
        with torch.no_grad():
            logits = theirs(torch.tensor([prompt.token_ids])).logits[0, -1]
        wanted = logits.log_softmax(0)[list(found[0].token_ids)]
        torch.testing.assert_close(torch.tensor(found[0].logprobs), wanted, rtol=0, atol=1e-3)


BROKEN = {
    "dtype": ("_blocks", lambda t: t.to(torch.int8), "is of type int8, but uint8 is expected"),
    "shape": ("_blocks", lambda t: t[..., :8].contiguous(), "has shape .* but config.json means"),
    "scales": ("_scales", lambda t: torch.full_like(t, 255), "scales.* holds NaN"),
    "missing": ("_scales", None, "lacks model.layers.0.mlp.experts.down_proj_scales"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_mxfp4(
    name: str, gpt_oss: tuple[Path, Path], open_llm: Open, tmp_path: Path
) -> None:
    end, spoil, words = BROKEN[name]
    tensors = load_file(gpt_oss[0] / "model.safetensors")
    key = f"model.layers.0.mlp.experts.down_proj{end}"
    tensor = tensors.pop(key)
    if spoil is not None:
        tensors[key] = spoil(tensor)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((gpt_oss[0] / "config.json").read_text())
    with pytest.raises(CheckpointError, match=words):
        open_llm(tmp_path)


def inverse_named(made: tuple[dict, torch.Tensor]) -> tuple[dict, torch.Tensor]:
    """Name scales as DeepSeek does."""
    parts, dense = made
    return {"weight": parts["weight"], "weight_scale_inv": parts["weight_scale"]}, dense


KEEP = ("lm_head", "mlp.gate")
#: Only weights are quantized: the same numbers as in the plain model.
EXACT = {
    "awq": Written(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        {"": awq(32)},
        KEEP,
    ),
    "gptq": Written(gptq_config(4, 32, True), {"": gptq(4, 32, True)}, KEEP),
    "gptq-act-order": Written(
        gptq_config(4, 16, True, True), {"": gptq(4, 16, True, act_order=True)}, KEEP
    ),
    "w4a16": Written(
        compressed(
            "pack-quantized", weights(4, "int", "group", 32), ignore=["lm_head", "re:.*mlp.gate$"]
        ),
        {"": packed(4, 32, True)},
        KEEP,
    ),
    "nvfp4": Written(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.gate"]},
        {"": fp4(16, "modelopt")},
        KEEP,
    ),
    "nvfp4-x": Written(  # whose x no kernel of this platform multiplies in four bits
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.gate"]},
        {"experts.1.": fp4(16, "modelopt", 0.0), "": fp4(16, "modelopt", 0.002)},
        KEEP,
    ),
    "quark-mxfp4": Written(
        quark(quark_spec("fp4", "per_group", **MX), exclude=["lm_head", "*.mlp.gate"]),
        {"": fp4(32, "quark")},
        KEEP,
    ),
    "mxfp8": Written(
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": ["gate"]},
        {"": lambda weight: inverse_named(mxfp8(weight))},
        KEEP,
    ),
    "bitsandbytes-int8": Written(
        bits_and_bytes(8, llm_int8_skip_modules=["lm_head", "gate"]), {"": row_maxima}, KEEP
    ),
    "bitsandbytes-nf4": Written(
        bits_and_bytes(4, bnb_4bit_quant_type="nf4"), {"": looked_up("nf4")}, KEEP
    ),
    "experts-alone": Written(
        compressed(
            "pack-quantized",
            weights(8, "int", "channel", None),
            ignore=["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*"],
        ),
        {"experts": packed(8, -1, True)},
    ),
}
#: x is quantized too.
NEAR = {
    "fp8-block": Written(
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32]}
        | {"activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]},
        {"": eight_bits(FP8, "block", scale_name="weight_scale_inv")},
        KEEP,
    ),
    "w4afp8": Written(
        {"quant_method": "w4afp8", "group_size": 32},
        {
            "experts": signed_nibbles(32),
            "": eight_bits(FP8, "block", scale_name="weight_scale_inv", block=128),
        },
        KEEP,
    ),
    "w8a8-fp8": Written(
        compressed(
            "float-quantized",
            weights(8, "float", "channel", None),
            TOKENF,
            ignore=["lm_head", "re:.*mlp.gate$"],
        ),
        {"": eight_bits(FP8, "channel")},
        KEEP,
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_experts_by_name(name: str, qwen: Path, tmp_path: Path, open_llm: Open) -> None:
    stored, plain = write(qwen, tmp_path, EXACT[name])
    options = {"dtype": "float32"}
    assert difference(open_llm(stored, **options), open_llm(plain, **options)) < 1e-4


@pytest.mark.parametrize(
    ("config", "quantize"),
    [
        (gptq_config(4, 32, True), gptq(4, 32, True)),
        (bits_and_bytes(8, llm_int8_skip_modules=None), row_maxima),
        (
            compressed("int-quantized", weights(8, "int", "channel", None)),
            eight_bits(torch.int8, "channel"),
        ),
    ],
    ids=["gptq", "bitsandbytes", "compressed-tensors"],
)
def test_experts_that_a_writer_left_out_without_a_word(
    config: dict, quantize: Quantizer, qwen: Path, gpt_oss: tuple[Path, Path], tmp_path, open_llm
) -> None:
    """Their modules hold them in one tensor, which is saved so, or by name."""
    for source in (qwen, gpt_oss[1]):
        found = Written(config, {"self_attn": quantize}, KEEP)
        stored, plain = write(source, tmp_path / source.parent.name, found)
        options = {"dtype": "float32"}
        assert difference(open_llm(stored, **options), open_llm(plain, **options)) < 1e-4


@pytest.mark.parametrize("name", NEAR)
def test_experts_and_activations(name: str, qwen: Path, tmp_path: Path, open_llm: Open) -> None:
    stored, plain = write(qwen, tmp_path, NEAR[name])
    options = {"dtype": "float32"}
    assert 1e-4 < difference(open_llm(stored, **options), open_llm(plain, **options)) < 1.5


def rewritten(plain: Path, root: Path, config: dict, change: Callable[..., None]) -> Path:
    """Write what `change` makes of each tensor of all experts, and the plain numbers into `plain`.

    Args:
        change: Called with a name, its tensor, all tensors to store, and all plain ones.
    """
    dense = load_file(plain / "model.safetensors")
    stored = dict(dense)
    for name in [name for name in dense if name.endswith((".gate_up_proj", ".down_proj"))]:
        change(name, stored.pop(name), stored, dense)
    save_file(dense, plain / "model.safetensors", {"format": "pt"})
    root.mkdir()
    save_file({n: t.contiguous() for n, t in stored.items()}, root / "model.safetensors")
    values = json.loads((plain / "config.json").read_text())
    (root / "config.json").write_text(json.dumps(values | {"quantization_config": config}))
    return root


STACKED = {
    "tensor": ({"activation_scheme": "static"}, eight_bits(FP8, "tensor")),
    "block": ({"weight_block_size": [32, 32]}, eight_bits(FP8, "block")),
}


@pytest.mark.parametrize("per", STACKED)
def test_fp8_of_all_experts_in_one_tensor(per: str, tmp_path: Path, open_llm: Open) -> None:
    """As Mistral Small 4 has it, and transformers writes it."""
    more, quantize = STACKED[per]

    def change(name: str, tensor, stored: dict, dense: dict) -> None:
        made = [quantize(expert) for expert in tensor]
        stored[name] = torch.stack([parts["weight"] for parts, _ in made])
        stored[f"{name}_scale_inv"] = torch.stack([parts["weight_scale"] for parts, _ in made])
        if per == "tensor":
            stored[f"{name}_activation_scale"] = torch.tensor(0.02)
        dense[name] = torch.stack([exact for _, exact in made])

    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    sizes = {"rope_parameters": rope, "num_key_value_heads": 4, "first_k_dense_replace": 0}
    sizes |= {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    sizes |= {"v_head_dim": 16, "n_routed_experts": 4, "moe_intermediate_size": 32}
    plain = save(tmp_path / "plain", "Mistral4", **sizes)
    kept = ["lm_head", "self_attn", "shared_experts"]
    config = {"quant_method": "fp8", "modules_to_not_convert": kept, **more}
    stored = rewritten(plain, tmp_path / "stored", config, change)
    options = {"dtype": "float32"}
    assert difference(open_llm(stored, **options), open_llm(plain, **options)) < 1e-4


def test_four_bits_of_experts_in_one_tensor_are_named(tmp_path: Path, open_llm: Open) -> None:
    """Zaya's plain files have one tensor for all experts; those of quantizers name each expert."""
    quantize = packed(4, 16, True)

    def change(name: str, tensor, stored: dict, dense: dict) -> None:
        block, _, part = name.rpartition(".")
        sides = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
        for i, expert in enumerate(tensor):
            for side, matrix in zip(sides, expert.chunk(len(sides)), strict=True):
                parts, exact = quantize(matrix)
                stored |= {f"{block}.{i}.{side}.{kind}": t for kind, t in parts.items()}
                matrix.copy_(exact)

    sizes = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    plain = save(tmp_path / "plain", "Zaya", **sizes, router_hidden_size=24)
    kept = ["lm_head", "re:.*self_attn", "re:.*mlp.gate"]
    config = compressed("pack-quantized", weights(4, "int", "group", 16), ignore=kept)
    stored = rewritten(plain, tmp_path / "stored", config, change)
    options = {"dtype": "float32"}
    assert difference(open_llm(stored, **options), open_llm(plain, **options)) < 1e-4


LLAMA4_FP8 = {
    "named": compressed(
        "float-quantized",
        weights(8, "float", "channel", None),
        TOKENF,
        ignore=["re:.*lm_head", "re:.*self_attn", "re:.*router", "re:.*shared_expert"],
    ),
    "stacked": {
        "quant_method": "fbgemm_fp8",
        "modules_to_not_convert": ["lm_head", "self_attn", "router", "shared_expert"],
    },
}


@pytest.mark.parametrize("how", LLAMA4_FP8)
def test_transposed_experts_of_all_in_one_tensor(how: str, tmp_path: Path, open_llm: Open) -> None:
    """Llama 4's files of 8 bits name each expert, or have scales of all as fbgemm writes them."""
    quantize = eight_bits(FP8, "channel")

    def change(name: str, tensor, stored: dict, dense: dict) -> None:
        block, _, part = name.rpartition(".")
        if how == "stacked":
            made = [quantize(expert.T.contiguous()) for expert in tensor]
            stored[name] = torch.stack([parts["weight"].T for parts, _ in made])
            scales = torch.stack([parts["weight_scale"] for parts, _ in made])
            stored[f"{name}_scale"] = scales.mT if part == "gate_up_proj" else scales
            dense[name] = torch.stack([exact.T for _, exact in made]).contiguous()
            return
        for i, expert in enumerate(tensor):
            both = part == "gate_up_proj"
            sides = ("gate_proj", "up_proj") if both else (part,)
            for side, matrix in zip(sides, expert.T.chunk(len(sides)), strict=True):
                parts, exact = quantize(matrix)
                stored |= {f"{block}.{i}.{side}.{kind}": t for kind, t in parts.items()}
                matrix.copy_(exact)

    sizes = {"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1}
    plain = save(tmp_path / "plain", "Llama4", **sizes, intermediate_size_mlp=96)
    stored = rewritten(plain, tmp_path / "stored", LLAMA4_FP8[how], change)
    options = {"dtype": "float32"}
    assert difference(open_llm(stored, **options), open_llm(plain, **options)) < 1e-4


def test_explain_counts_the_numbers_of_experts_in_one_tensor(gpt_oss: tuple[Path, Path]) -> None:
    config = EngineConfig(str(gpt_oss[0]), platform="cpu", skip_tokenizer_init=True)
    fates = {fate.name: fate for fate in explain(config).weights}
    prefix = "model.layers.0.mlp.experts.gate_up_proj"
    found = [fates[f"{prefix}_{kind}"] for kind in ("blocks", "scales", "bias")]
    assert [fate.stored for fate in found] == ["uint8, 4 bits", "uint8", "float32, 32 bits"]
    assert [fate.weight_bytes is None for fate in found] == [False, True, True]


def test_explain_says_why_x_is_not_in_four_bits(qwen: Path, tmp_path: Path) -> None:
    stored, _ = write(qwen, tmp_path, EXACT["nvfp4-x"])
    found = explain(EngineConfig(str(stored), platform="cpu", skip_tokenizer_init=True))
    form = "fp4_e2m1 by group of 16, x in fp4_e2m1 by group of 16"
    assert found.forgone.keys() == {("linear", form), ("moe", form)}
    row = rf"moe +{form} +by_expert +gate_up: x would have to be rounded to fp4_e2m1 first"
    assert re.search(row, as_text(found))
    told = {one["slot"]: one["others"] for one in json.loads(json.dumps(as_json(found)))["forgone"]}
    assert "widened" in told["linear"] and "native" in told["moe"]
