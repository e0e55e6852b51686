"""DeepSeek V4 as it is published: names of its own, FP8 by blocks, experts in FP4."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models.conftest import COMPRESSED, Checkpoint, Checkpoints, Variant
from tests.plugins.quantization.writers import Quantizer, fp4

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.cli.main import main
from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, Storage, WeightFormat
from hotshoe.models import ModelConfig
from hotshoe.models.quantization import stored_quantization
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.deepseek_v4 import build
from hotshoe_quantization.elements import Elements
from hotshoe_quantization.fp8 import read

BLOCK, GROUP = 32, 32
VARIANT = Variant(
    "deepseek-v4-published",
    "DeepseekV4",
    {
        **COMPRESSED,
        "num_hidden_layers": 3,
        "layer_types": None,
        "compress_ratios": [0, 4, 128, 0],
        "head_dim": 32,
        "q_lora_rank": 48,
        "intermediate_size": 32,
        "moe_intermediate_size": 32,
        "num_hash_layers": 1,
        "o_groups": 2,
        "o_lora_rank": 32,
        "index_n_heads": 4,
    },
)
#: Names of transformers' modules in a layer, and those of the files.
LAYER = {
    "attn_hc.fn": "hc_attn_fn",
    "attn_hc.base": "hc_attn_base",
    "attn_hc.scale": "hc_attn_scale",
    "ffn_hc.fn": "hc_ffn_fn",
    "ffn_hc.base": "hc_ffn_base",
    "ffn_hc.scale": "hc_ffn_scale",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.sinks": "attn.attn_sink",
    "self_attn.q_a_proj.weight": "attn.wq_a.weight",
    "self_attn.q_a_norm.weight": "attn.q_norm.weight",
    "self_attn.q_b_proj.weight": "attn.wq_b.weight",
    "self_attn.kv_proj.weight": "attn.wkv.weight",
    "self_attn.kv_norm.weight": "attn.kv_norm.weight",
    "self_attn.o_a_proj.weight": "attn.wo_a.weight",
    "self_attn.o_b_proj.weight": "attn.wo_b.weight",
    "self_attn.compressor.position_bias": "attn.compressor.ape",
    "self_attn.compressor.kv_proj.weight": "attn.compressor.wkv.weight",
    "self_attn.compressor.gate_proj.weight": "attn.compressor.wgate.weight",
    "self_attn.compressor.kv_norm.weight": "attn.compressor.norm.weight",
    "self_attn.compressor.indexer.position_bias": "attn.indexer.compressor.ape",
    "self_attn.compressor.indexer.kv_proj.weight": "attn.indexer.compressor.wkv.weight",
    "self_attn.compressor.indexer.gate_proj.weight": "attn.indexer.compressor.wgate.weight",
    "self_attn.compressor.indexer.kv_norm.weight": "attn.indexer.compressor.norm.weight",
    "self_attn.compressor.indexer.q_b_proj.weight": "attn.indexer.wq_b.weight",
    "self_attn.compressor.indexer.scorer.weights_proj.weight": "attn.indexer.weights_proj.weight",
    "mlp.gate.weight": "ffn.gate.weight",
    "mlp.gate.tid2eid": "ffn.gate.tid2eid",
    "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
    "mlp.shared_experts.gate_proj.weight": "ffn.shared_experts.w1.weight",
    "mlp.shared_experts.down_proj.weight": "ffn.shared_experts.w2.weight",
    "mlp.shared_experts.up_proj.weight": "ffn.shared_experts.w3.weight",
}
ENDS = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
    "model.hc_head.hc_fn": "hc_head_fn",
    "model.hc_head.hc_base": "hc_head_base",
    "model.hc_head.hc_scale": "hc_head_scale",
}
QUANTIZED = ("wq_a", "wq_b", "attn.wkv", "wo_a", "wo_b", "w1", "w2", "w3")
#: Modules of transformers in front of whose products x is rounded to 8-bit floats.
ROUNDED = ("q_a_proj", "q_b_proj", "self_attn.kv_proj", "o_b_proj")
ROUNDED += tuple(f"shared_experts.{part}_proj" for part in ("gate", "up", "down"))
OPTIONS = {
    "platform": "cpu",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "kv_cache_memory_bytes": 1 << 22,
}
#: Relative to the largest logit; float32 comes to 1e-6.
LIMIT = 2e-5


def fp8_blocks(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """8-bit floats by square blocks, whose scales are the least powers of two that reach."""
    wide = torch.empty_like(weight)
    rows, columns = (range(0, size, BLOCK) for size in weight.shape)
    exponents = torch.empty(len(rows), len(columns), dtype=torch.uint8)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            block = weight[row : row + BLOCK, column : column + BLOCK]
            exponent = int(torch.ceil(torch.log2(block.abs().max() / 448)))
            exponents[i, j] = exponent + 127
            wide[row : row + BLOCK, column : column + BLOCK] = 2.0**exponent
    values = (weight / wide).to(torch.float8_e4m3fn)
    stored = {"weight": values, "scale": exponents.view(torch.float8_e8m0fnu)}
    return stored, values.float() * wide


def fp4_groups(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """4-bit floats, pairs of them in signed bytes."""
    parts, dense = fp4(GROUP, "mx")(weight)
    weights = parts["weight_packed"].view(torch.int8)
    return {"weight": weights, "scale": parts["weight_scale"]}, dense


def by_published_names(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return plain tensors of a model of transformers, experts one by one."""
    found = {}
    for name, tensor in model.state_dict().items():
        if name in ENDS:
            found[ENDS[name]] = tensor
            continue
        number, _, rest = name.removeprefix("model.layers.").partition(".")
        if rest in LAYER:
            found[f"layers.{number}.{LAYER[rest]}"] = tensor
            continue
        for i, expert in enumerate(tensor):
            prefix = f"layers.{number}.ffn.experts.{i}."
            if rest == "mlp.experts.gate_up_proj":
                found[f"{prefix}w1.weight"], found[f"{prefix}w3.weight"] = expert.chunk(2)
            else:
                assert rest == "mlp.experts.down_proj", name
                found[f"{prefix}w2.weight"] = expert
    return found


def write(made: Checkpoint, root: Path, experts: Quantizer = fp4_groups) -> tuple[Path, Path]:
    """Write a published checkpoint, and the plain numbers that it stands for, by the same names."""
    stored, plain = {}, {}
    for name, tensor in by_published_names(made.model).items():
        layer = name.removesuffix(".weight")
        if not layer.endswith(QUANTIZED) or "compressor" in layer:
            stored[name] = plain[name] = tensor.clone()
            continue
        parts, plain[name] = (experts if ".experts." in layer else fp8_blocks)(tensor)
        stored |= {f"{layer}.{part}": value.contiguous() for part, value in parts.items()}
    stored["mtp.0.e_proj.weight"] = torch.ones(2, 2).to(torch.float8_e4m3fn)
    stored["mtp.0.e_proj.scale"] = torch.ones(1, 1).to(torch.float8_e8m0fnu)
    config = json.loads((made.path / "config.json").read_text())
    described = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"}
    described |= {"scale_fmt": "ue8m0", "weight_block_size": [BLOCK, BLOCK]}
    more = {"quantization_config": described}
    more |= {"expert_dtype": "fp4"} if experts is fp4_groups else {}
    for path, tensors, values in ((root / "stored", stored, more), (root / "plain", plain, {})):
        path.mkdir(parents=True)
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        (path / "config.json").write_text(json.dumps(config | values))
    return root / "stored", root / "plain"


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Round x to 8-bit floats, by groups of columns with a scale each."""
    found = []
    for part in x.split(BLOCK, -1):
        scale = part.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448
        found.append((part / scale).to(torch.float8_e4m3fn).float() * scale)
    return torch.cat(found, -1)


def judge(made: Checkpoint, plain: Path) -> Checkpoint:
    """Return transformers' model of plain numbers."""
    model = type(made.model).from_pretrained(plain, attn_implementation="eager")
    return Checkpoint(plain, model.float().eval())


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest number; NaN is infinite."""
    off = (found - wanted).abs().max() / wanted.abs().max()
    return float(off.nan_to_num(torch.inf))


def format_of(path: Path) -> WeightFormat:
    config = stored_quantization(ModelConfig.load(path))
    assert config is not None
    return read(config)


@pytest.fixture(scope="module")
def published(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory):
    made = checkpoints.get(VARIANT)
    stored, plain = write(made, tmp_path_factory.mktemp("published"))
    return stored, judge(made, plain)


@pytest.fixture
def plain_x(monkeypatch):
    """Leave x as it is: the last bit of a float32 sum may round it to another 8-bit float."""
    storage = Elements.storage

    def plain(*arguments) -> Storage:
        return replace(storage(*arguments), activation=None)

    monkeypatch.setattr(Elements, "storage", plain)


def test_logits_are_those_of_the_numbers_that_files_stand_for(published, stepper_class, plain_x):
    stored, wanted = published
    text = [random.randrange(256) for _ in range(41)]
    text = text[: wanted.unstable(text)] or text[:1]
    stepper = stepper_class(stored, 64, format=format_of(stored))
    assert error(stepper.step({0: text})[0], wanted.logits(text)) < LIMIT
    [unused] = stepper.ctx.weights.notice().values()
    assert unused == "2 tensors of layers that predict further tokens"


def test_greedy_tokens_are_the_same(published, plain_x):
    stored, wanted = published
    prompt = [random.randrange(256) for _ in range(21)]
    params = SamplingParams(temperature=0.0, max_tokens=12)
    with LLM(str(stored), **OPTIONS) as llm:
        [result] = llm.generate([TokensPrompt(prompt)], params)
    wanted.assert_greedy(prompt, result.outputs[0].token_ids)


def test_x_is_rounded_in_front_of_blocks(published, stepper_class):
    """Of texts of one token hardly any has an x at the border between two 8-bit floats."""
    stored, wanted = published
    stepper = stepper_class(stored, 64, format=format_of(stored))
    texts = {i: [random.randrange(256)] for i in range(9)}
    found = stepper.step(texts)
    hooks = [
        module.register_forward_pre_hook(lambda _, x: (rounded(x[0]), *x[1:]))
        for name, module in wanted.model.named_modules()
        if name.endswith(ROUNDED)
    ]
    errors = sorted(error(found[i], wanted.logits(text)) for i, text in texts.items())
    for hook in hooks:
        hook.remove()
    assert errors[4] < LIMIT
    assert error(found[0], wanted.logits(texts[0])) > 100 * LIMIT


def test_experts_may_have_blocks_of_eight_bits_too(
    published, checkpoints, tmp_path, stepper_class, plain_x
):
    made = checkpoints.get(VARIANT)
    stored, plain = write(made, tmp_path, fp8_blocks)
    wanted, text = judge(made, plain), [random.randrange(256) for _ in range(9)]
    text = text[: wanted.unstable(text)] or text[:1]
    found = stepper_class(stored, 64, format=format_of(stored)).step({0: text})[0]
    assert error(found, wanted.logits(text)) < LIMIT


def without(name):
    return lambda tensors, config: tensors.pop(name)


def changed(name, change):
    return lambda tensors, config: tensors.update({name: change(tensors[name])})


BAD = [
    (without("layers.0.attn.wq_a.scale"), "lacks model.layers.0.attn.wq_a.weight_scale_inv"),
    (without("layers.1.ffn.experts.3.w2.scale"), "lacks .*experts.3.w2.weight_scale_inv"),
    (without("layers.2.attn.kv_norm.weight"), "lacks model.layers.2.attn.norm.weight"),
    (
        changed("layers.1.attn.indexer.wq_b.scale", lambda t: t[:-1].clone()),
        r"indexer.wq_b.weight_scale_inv has shape \[1, 2\], but config.json means \[2, 2\]",
    ),
    (
        changed("layers.0.ffn.experts.0.w1.weight", lambda t: t[:, :-16].clone()),
        r"experts.0.w1.weight has shape \[32, 16\], but config.json means \[32, 32\]",
    ),
    (
        changed("layers.0.ffn.experts.0.w1.scale", lambda t: t.float()),
        "experts.0.w1.weight_scale_inv is of type float32, but float8_e8m0fnu or uint8 is expected",
    ),
    (
        lambda tensors, config: config.update(expert_dtype="int4"),
        "expert_dtype is read as fp8 or fp4, not 'int4'",
    ),
    (
        lambda tensors, config: config.pop("expert_dtype"),
        "experts.0.w1.* (has shape|is of type int8, but float8_e4m3fn is expected)",
    ),
]


@pytest.mark.parametrize(("harm", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_files_are_refused_by_name(published, tmp_path, capsys, harm, message):
    stored, _ = published
    tensors = load_file(stored / "model.safetensors")
    config = json.loads((stored / "config.json").read_text())
    harm(tensors, config)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ["--prompt", "x", "--platform", "cpu", "--dtype", "float32"]
    assert main(["generate", str(tmp_path), *flags, "--skip-tokenizer-init"]) == 2
    assert re.search(message, capsys.readouterr().err)


#: Headers of the files of V4 Flash, of a layer with indexed entries: type and shape. They have 256
#: experts, not 8. What is the same as in another line is left out.
F8, E8, BF16, F32 = torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bfloat16, torch.float32
HEADERS = {
    "embed.weight": (BF16, 129280, 4096),
    "head.weight": (BF16, 129280, 4096),
    "norm.weight": (BF16, 4096),
    "hc_head_fn": (F32, 4, 16384),
    "hc_head_base": (F32, 4),
    "hc_head_scale": (F32, 1),
    "layers.2.attn_norm.weight": (BF16, 4096),
    "layers.2.attn.attn_sink": (F32, 64),
    "layers.2.attn.compressor.ape": (F32, 4, 1024),
    "layers.2.attn.compressor.norm.weight": (BF16, 512),
    "layers.2.attn.compressor.wgate.weight": (BF16, 1024, 4096),
    "layers.2.attn.compressor.wkv.weight": (BF16, 1024, 4096),
    "layers.2.attn.indexer.compressor.ape": (F32, 4, 256),
    "layers.2.attn.indexer.compressor.norm.weight": (BF16, 128),
    "layers.2.attn.indexer.compressor.wgate.weight": (BF16, 256, 4096),
    "layers.2.attn.indexer.compressor.wkv.weight": (BF16, 256, 4096),
    "layers.2.attn.indexer.weights_proj.weight": (BF16, 64, 4096),
    "layers.2.attn.indexer.wq_b.scale": (E8, 64, 8),
    "layers.2.attn.indexer.wq_b.weight": (F8, 8192, 1024),
    "layers.2.attn.kv_norm.weight": (BF16, 512),
    "layers.2.attn.q_norm.weight": (BF16, 1024),
    "layers.2.attn.wkv.scale": (E8, 4, 32),
    "layers.2.attn.wkv.weight": (F8, 512, 4096),
    "layers.2.attn.wo_a.scale": (E8, 64, 32),
    "layers.2.attn.wo_a.weight": (F8, 8192, 4096),
    "layers.2.attn.wo_b.scale": (E8, 32, 64),
    "layers.2.attn.wo_b.weight": (F8, 4096, 8192),
    "layers.2.attn.wq_a.scale": (E8, 8, 32),
    "layers.2.attn.wq_a.weight": (F8, 1024, 4096),
    "layers.2.attn.wq_b.scale": (E8, 256, 8),
    "layers.2.attn.wq_b.weight": (F8, 32768, 1024),
    "layers.2.ffn_norm.weight": (BF16, 4096),
    "layers.2.ffn.gate.tid2eid": (torch.int64, 129280, 6),
    "layers.2.ffn.gate.weight": (BF16, 8, 4096),
    "layers.2.ffn.experts.0.w1.scale": (E8, 2048, 128),
    "layers.2.ffn.experts.0.w1.weight": (torch.int8, 2048, 2048),
    "layers.2.ffn.experts.0.w2.scale": (E8, 4096, 64),
    "layers.2.ffn.experts.0.w2.weight": (torch.int8, 4096, 1024),
    "layers.2.ffn.shared_experts.w1.scale": (E8, 16, 32),
    "layers.2.ffn.shared_experts.w1.weight": (F8, 2048, 4096),
    "layers.2.ffn.shared_experts.w2.scale": (E8, 32, 16),
    "layers.2.ffn.shared_experts.w2.weight": (F8, 4096, 2048),
    "layers.2.hc_attn_base": (F32, 24),
    "layers.2.hc_attn_fn": (F32, 24, 16384),
    "layers.2.hc_attn_scale": (F32, 3),
    "layers.3.attn.compressor.ape": (F32, 128, 512),
    "layers.3.attn.compressor.wkv.weight": (BF16, 512, 4096),
    "layers.3.ffn.gate.bias": (F32, 8),
}
DESCRIBED = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "compress_ratios": [0, 0, 4, 128, 4, 0],
    "expert_dtype": "fp4",
    "max_position_embeddings": 1048576,
    "n_routed_experts": 8,
    "num_hash_layers": 3,
    "num_hidden_layers": 4,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {"factor": 16, "original_max_position_embeddings": 65536, "type": "yarn"},
}


def test_headers_of_v4_flash_are_expected(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DESCRIBED))
    facts = DeviceFacts("plain", "meta", "a test's device", "any", 1 << 40, 1)
    types = ("bfloat16", "bfloat16", 32, 4096)
    ctx = BuildContext(Selector(SLOTS, [], facts), *types, format=format_of(tmp_path))
    build(ModelConfig.load(tmp_path), ctx)
    for name, (dtype, *shape) in HEADERS.items():
        known = ctx.weights.known_as(name)
        assert ctx.weights.wants(known), name
        ctx.weights.check(known, tuple(shape), dtype)
    found = {re.sub(r"layers\.\d+|experts\.\d+", "", known) for known in ctx.weights.expected}
    listed = {re.sub(r"layers\.\d+|experts\.\d+", "", ctx.weights.known_as(n)) for n in HEADERS}
    alike = {name.replace("w3", "w1").replace("hc_ffn", "hc_attn") for name in found}
    assert alike == listed


def test_ranks_that_would_cut_a_group_are_told_what_helps(tmp_path):
    """The remedy comes in the place of what each kernel says of a part of a group."""
    sizes = {**DESCRIBED, "moe_intermediate_size": 192, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "compress_ratios": [0]}))
    facts = DeviceFacts("plain", "meta", "a test's device", "any", 1 << 40, 1)
    types = ("bfloat16", "bfloat16", 32, 4096)
    several = {"rank": 1, "size": 4, "format": format_of(tmp_path)}
    ctx = BuildContext(Selector(SLOTS, [], facts), *types, **several)
    words = r"experts\.0\.w2: its scales .* without cutting one; .* or enable_expert_parallel"
    with pytest.raises(CheckpointError, match=words):
        build(ModelConfig.load(tmp_path), ctx)
