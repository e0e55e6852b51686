"""Quantized checkpoints through the whole engine, against the plain model that they stand for."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.quantization.writers import (
    Written,
    awq,
    eight_bits,
    flattened,
    fp4,
    gptq,
    hqq,
    looked_up,
    mxfp8,
    nibbles,
    packed,
    row_maxima,
    signed_integers,
    ternary,
    write,
)

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe.types import TokenLogprobs
from hotshoe_conformance.checkpoint import write_model
from hotshoe_conformance.host import host_plugins

PROMPTS = [TokensPrompt([(11 * i + 5 * n) % 320 for i in range(9 + n)]) for n in range(2)]
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=8)
OPTIONS = {"platform": "cpu", "skip_tokenizer_init": True, "max_num_seqs": 2, "max_model_len": 64}
FP8, INT8 = torch.float8_e4m3fn, torch.int8


INSIDE = [["self_attn.o_proj"], ["mlp.down_proj"]]


def compressed(kind: str, weights: dict, inputs: dict | None = None, **more: object) -> dict:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | {"output_activations": None}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        **more,
    }


def weights(bits: int, kind: str, strategy: str, size: int | None, symmetric: bool = True, **more):
    values = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": size}
    return values | {"symmetric": symmetric, "dynamic": False, "observer": "minmax"} | more


def gptq_config(bits: int, size: int, sym: bool, desc_act: bool = False, **more: object) -> dict:
    values = {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": sym}
    return values | {"desc_act": desc_act, "damp_percent": 0.01} | more


def hqq_config(bits: int, size: int | None, **more: object) -> dict:
    params = {"nbits": bits, "group_size": size, "axis": 1, "view_as_float": False}
    params |= {"channel_wise": True, "optimize": True, "round_zero": bits == 4}
    made = {"weight_quant_params": params, "scale_quant_params": None, "zero_quant_params": None}
    made["offload_meta"] = False
    return {"quant_method": "hqq", "quant_config": made, "skip_modules": ["lm_head"]} | more


def bits_and_bytes(bits: int, **more: object) -> dict:
    values = {"quant_method": "bitsandbytes", "llm_int8_skip_modules": None}
    return values | {"load_in_8bit": bits == 8, "load_in_4bit": bits == 4} | more


def quark(weight: dict, inputs: dict | None = None, **more: object) -> dict:
    layer = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    export = {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"}
    values = {"quant_method": "quark", "global_quant_config": layer, "layer_quant_config": {}}
    return values | {"exclude": ["lm_head"], "export": export, "algo_config": None} | more


def quark_spec(dtype: str, qscheme: str, dynamic: bool = False, **more: object) -> dict:
    axis = {"per_channel": 0}.get(qscheme)
    values = {"dtype": dtype, "qscheme": qscheme, "is_dynamic": dynamic, "ch_axis": axis}
    return values | {"symmetric": True, "group_size": None, "scale_format": None} | more


def torchao(kind: str, shared: dict, **data: object) -> dict:
    made = {"_type": f"{kind}Config", "_version": 2, "_data": {"granularity": shared, **data}}
    values = {"quant_method": "torchao", "quant_type": {"default": made}}
    return values | {"modules_to_not_convert": None, "include_input_output_embeddings": False}


def auto_round(packing: str, **more: object) -> dict:
    values = {"quant_method": "auto-round", "packing_format": f"auto_round:{packing}", "bits": 4}
    values |= {"group_size": 32, "sym": True, "data_type": "int", "iters": 200, "seqlen": 2048}
    return values | {"autoround_version": "0.9.0", "block_name_to_quantize": "model.layers"} | more


PER_ROW = {"_type": "PerRow", "_version": 1, "_data": {"dim": -1}}
PER_GROUP = {"_type": "PerGroup", "_version": 1, "_data": {"group_size": 32}}
MX = {"group_size": 32, "scale_format": "e8m0", "ch_axis": -1, "symmetric": None}
TOKEN8 = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
TOKENF = TOKEN8 | {"type": "float"}
FIXEDF = TOKENF | {"strategy": "tensor", "dynamic": False}
GROUPF = TOKENF | {"strategy": "group", "group_size": 32}
#: Only the weight is quantized: the same numbers as in the plain model.
EXACT = {
    "awq": Written(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        {"": awq(32)},
    ),
    "awq-sym": Written(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": False},
        {"": awq(32, symmetric=True)},
    ),
    "gptq-4-sym": Written(gptq_config(4, 32, True), {"": gptq(4, 32, True)}),
    "gptq-4-row": Written(gptq_config(4, -1, False), {"": gptq(4, -1, False)}),
    "gptq-8": Written(gptq_config(8, 16, False), {"": gptq(8, 16, False)}),
    "gptq-act-order": Written(
        gptq_config(4, 16, True, True), {"": gptq(4, 16, True, act_order=True)}
    ),
    "gptq-dynamic": Written(  # q, k and v have two, three and four bits
        gptq_config(
            *(4, 32, True),
            dynamic={
                r"+:.*\.q_proj": {"bits": 2},
                r"+:.*\.k_proj": {"bits": 3},
                r".*layers\.[01]\.mlp\.(gate|up)": {"bits": 3, "group_size": -1, "sym": False},
                r".*layers\.2\.mlp\.(gate|up)": {"bits": 8, "desc_act": True},
                r"-:.*layers\.1\.mlp\.down": {},
            },
        ),
        {
            "q_proj": gptq(2, 32, True),
            "k_proj": gptq(3, 32, True),
            "layers.2.mlp.gate": gptq(8, 32, True, act_order=True),
            "layers.2.mlp.up": gptq(8, 32, True, act_order=True),
            "mlp.gate": gptq(3, -1, False),
            "mlp.up": gptq(3, -1, False),
            "": gptq(4, 32, True),
        },
        ("lm_head", "layers.1.mlp.down"),
    ),
    "gptq-inside": Written(
        gptq_config(4, 32, True, modules_in_block_to_quantize=INSIDE),
        {"": gptq(4, 32, True)},
        ("lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    ),
    "gptq-v2": Written(
        gptq_config(4, 32, False, checkpoint_format="gptq_v2"), {"": gptq(4, 32, False, 2)}
    ),
    "hqq": Written(hqq_config(4, 32, skip_modules=["lm_head"]), {"": hqq(4, 32)}),
    "hqq-by-layer": Written(
        {
            "quant_method": "hqq",
            "quant_config": {
                f"self_attn.{name}_proj": hqq_config(8, None)["quant_config"] for name in "qkv"
            }
            | {f"mlp.{name}_proj": hqq_config(2, 32)["quant_config"] for name in ("gate", "up")},
            "skip_modules": ["lm_head", "model.layers.1"],
        },
        {
            **{f"{name}_proj": hqq(8, None) for name in "qkv"},
            **{f"{name}_proj": hqq(2, 32) for name in ("gate", "up")},
        },
        ("lm_head", "layers.1"),
    ),
    "w4a16-group": Written(
        compressed("pack-quantized", weights(4, "int", "group", 32)), {"": packed(4, 32, True)}
    ),
    "w4a16-asymmetric": Written(
        compressed("pack-quantized", weights(4, "int", "group", 16, False)),
        {"": packed(4, 16, False)},
    ),
    "w4a16-act-order": Written(
        compressed("pack-quantized", weights(4, "int", "group", 32, actorder="group")),
        {"": packed(4, 32, True, act_order=True)},
    ),
    "w4a16-of-some": Written(  # v is plain, k has eight bits, up a group of its own
        compressed(
            "pack-quantized",
            {},
            config_groups={
                "a": {"targets": ["Linear"], "weights": weights(4, "int", "group", 32, False)},
                "b": {"targets": ["re:.*k_proj"], "weights": weights(8, "int", "channel", None)},
                "c": {"targets": ["re:.*up_proj"], "weights": weights(4, "int", "group", 16)},
            },
            ignore=["lm_head", "re:.*v_proj"],
        ),
        {"k_proj": packed(8, -1, True), "up_proj": packed(4, 16, True), "": packed(4, 32, False)},
        ("lm_head", "v_proj"),
    ),
    "w8a16-channel": Written(
        compressed("pack-quantized", weights(8, "int", "channel", None)), {"": packed(8, -1, True)}
    ),
    "fp8-weight-only": Written(
        compressed("float-quantized", weights(8, "float", "channel", None)),
        {"": eight_bits(FP8, "channel")},
    ),
    "modelopt-block": Written(
        {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "exclude_modules": ["lm_head"]},
        {"": eight_bits(FP8, "block", block=128)},
    ),
    "modelopt-nvfp4": Written(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        {"": fp4(16, "modelopt")},
    ),
    "modelopt-nvfp4-x": Written(  # whose x no kernel of this platform multiplies in four bits
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        {"": fp4(16, "modelopt", 0.002)},
    ),
    "modelopt-others": Written(
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "model.layers.0.mlp": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                "model.layers.1.mlp": {"quant_algo": "W4A8_NVFP4_FP8", "group_size": 16},
                "model.layers.2.mlp": {"quant_algo": "mxfp4"},
                "model.layers.*.self_attn.o_proj": {"quant_algo": "W4A8_MXFP4_FP8"},
                "model.layers.*.self_attn.[qkv]_proj": {"quant_algo": "W8A16"},
            },
        },
        {
            "layers.0.mlp": fp4(16, "modelopt"),
            "layers.1.mlp": fp4(16, "modelopt", 0.1),
            "layers.2.mlp": fp4(32, "quark"),
            "o_proj": fp4(32, "quark"),
            "self_attn": eight_bits(INT8, "channel", scale_shape=(-1,)),
        },
    ),
    "modelopt-mxfp8": Written(
        {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]}, {"": mxfp8}
    ),
    "modelopt-mixed": Written(
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "model.layers.0.mlp": {"quant_algo": "NVFP4", "group_size": 16},
                "model.layers.*.self_attn.*": {"quant_algo": "MXFP8"},
                "model.layers.1.mlp.down_proj": {"quant_algo": "FP8_PB_WO"},
            },
        },
        {
            "layers.0.mlp": fp4(16, "modelopt"),
            "self_attn": mxfp8,
            "layers.1.mlp.down_proj": eight_bits(FP8, "block", block=128),
        },
    ),
    "mxfp8": Written(
        compressed(
            "mixed-precision",
            {},
            config_groups={
                "a": {
                    "targets": ["Linear"],
                    "format": "mxfp8-quantized",
                    "weights": weights(8, "float", "group", 32, scale_dtype="torch.uint8"),
                    "input_activations": GROUPF,
                }
            },
        ),
        {"": mxfp8},
    ),
    "w4a8-packed": Written(
        compressed("pack-quantized", weights(4, "int", "group", 32), TOKENF),
        {"": packed(4, 32, True)},
    ),
    "nvfp4": Written(
        compressed("nvfp4-pack-quantized", weights(4, "float", "tensor_group", 16), TOKEN8),
        {"": fp4(16, "nvfp4")},
    ),
    "mxfp4": Written(
        compressed("mxfp4-pack-quantized", weights(4, "float", "group", 32)),
        {"": fp4(32, "mxfp4")},
    ),
    "mxfp4-exponents": Written(
        compressed("mxfp4-pack-quantized", weights(4, "float", "group", 32)), {"": fp4(32, "mx")}
    ),
    "bitsandbytes-int8": Written(
        bits_and_bytes(8, llm_int8_skip_modules=["lm_head", "layers.1.mlp", "o_proj"]),
        {"": row_maxima},
        ("lm_head", "layers.1.mlp", "o_proj"),
    ),
    "bitsandbytes-nf4": Written(
        bits_and_bytes(4, bnb_4bit_quant_type="nf4"),
        {"": looked_up("nf4")},
        ("lm_head", "layers.1.mlp", "o_proj"),
    ),
    "bitsandbytes-nf4-nested": Written(
        bits_and_bytes(4, bnb_4bit_quant_type="nf4"), {"": looked_up("nf4", 64, 40)}
    ),
    "bitsandbytes-fp4": Written(
        bits_and_bytes(4, bnb_4bit_quant_type="fp4"), {"": looked_up("fp4", 128)}
    ),
    "quark-mxfp4": Written(
        quark(quark_spec("fp4", "per_group", **MX), quark_spec("fp4", "per_group", True, **MX)),
        {"": fp4(32, "quark")},
    ),
    "quark-by-layer": Written(
        quark(
            quark_spec("fp4", "per_group", **MX),
            layer_quant_config={"*self_attn*": {"weight": quark_spec("int8", "per_channel")}},
            exclude=["lm_head", "re:.*layers.1.mlp", "*2.mlp.down_proj"],
        ),
        {"self_attn": eight_bits(INT8, "channel", scale_shape=(-1,)), "": fp4(32, "quark")},
        ("lm_head", "layers.1.mlp", "layers.2.mlp.down_proj"),
    ),
    "torchao-int8": Written(
        torchao("Int8WeightOnly", PER_ROW), {"": flattened(eight_bits(INT8, "channel"), INT8)}
    ),
    "torchao-fp8": Written(
        torchao("Float8WeightOnly", PER_ROW), {"": flattened(eight_bits(FP8, "channel"))}
    ),
    "torchao-int4": Written(
        torchao("IntxWeightOnly", PER_GROUP, weight_dtype={"_data": "int4"}),
        {"": flattened(signed_integers(4, 32, True), INT8)},
    ),
    "torchao-int4-plain": Written(
        torchao("Int4WeightOnly", PER_ROW, group_size=32), {"": nibbles(32)}
    ),
    "torchao-int4-asymmetric": Written(
        torchao(
            "IntxWeightOnly",
            PER_GROUP,
            weight_dtype={"_type": "torch.dtype", "_data": "int4"},
            mapping_type={"_type": "MappingType", "_data": "ASYMMETRIC"},
        ),
        {"": flattened(signed_integers(4, 32, False), INT8)},
    ),
    "auto-round": Written(
        auto_round(
            "auto_gptq",
            block_name_to_quantize="model.layers.0,model.layers.1",
            extra_config={
                "model.layers.0.mlp.down_proj": {"bits": 16, "act_bits": 16},
                r".*self_attn\.[qkv].*": {"bits": 8},
                "lm_head": {"bits": 4},
            },
        ),
        {"q_proj": gptq(8, 32, True), "k_proj": gptq(8, 32, True), "v_proj": gptq(8, 32, True)}
        | {"": gptq(4, 32, True)},
        ("layers.0.mlp.down_proj", "layers.2"),
    ),
    "auto-round-asymmetric": Written(
        auto_round("gptqmodel", bits=2, sym=False, block_name_to_quantize=None),
        {"": gptq(2, 32, False, 2)},
    ),
    "auto-round-awq": Written(auto_round("auto_awq"), {"": awq(32)}),
    "auto-round-floats": Written(
        auto_round(
            "llm_compressor",
            data_type="nv_fp",
            group_size=16,
            act_bits=4,
            act_data_type="nv_fp4_with_static_gs",
            extra_config={
                r".*layers\.1\..*": {"data_type": "mx_fp", "group_size": 32},
                r".*layers\.2\.mlp.*": {"data_type": "mx_fp", "group_size": 32, "bits": 8},
            },
        ),
        {"layers.1": fp4(32, "mxfp4"), "layers.2.mlp": mxfp8, "": fp4(16, "nvfp4", 0.1)},
    ),
    "mixed": Written(
        compressed(
            "pack-quantized",
            {},
            config_groups={
                "a": {
                    "targets": [r"re:.*self_attn.*"],
                    "weights": weights(8, "int", "channel", None),
                },
                "b": {"targets": ["Linear"], "weights": weights(4, "int", "group", 32)},
            },
            ignore=["lm_head", r"re:model\.layers\.1\.mlp.*", "model.layers.2.mlp.down_proj"],
        ),
        {"self_attn": packed(8, -1, True), "": packed(4, 32, True)},
        ("lm_head", "layers.1.mlp", "layers.2.mlp.down_proj"),
    ),
}
#: x is quantized too, which a random model feels: `test_elements` has the exact numbers.
NEAR = {
    "w4a8-elements": Written(
        compressed("int-quantized", weights(4, "int", "group", 32, False), TOKEN8),
        {"": signed_integers(4, 32, False)},
    ),
    "w8a8-int8": Written(
        compressed("int-quantized", weights(8, "int", "channel", None), TOKEN8),
        {"": eight_bits(INT8, "channel")},
    ),
    "w8a8-fp8": Written(
        compressed("float-quantized", weights(8, "float", "channel", None), TOKENF),
        {"": eight_bits(FP8, "channel")},
    ),
    "w8a8-fp8-static": Written(
        compressed("float-quantized", weights(8, "float", "tensor", None), FIXEDF),
        {"": eight_bits(FP8, "tensor", 0.02, scale_shape=(1,))},
    ),
    "w8a8-fp8-block": Written(
        compressed(
            "float-quantized",
            weights(8, "float", "block", None, block_structure=[32, 32]),
            GROUPF,
        ),
        {"": eight_bits(FP8, "block")},
    ),
    "fp8-block": Written(
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32]}
        | {"activation_scheme": "dynamic"},
        {"": eight_bits(FP8, "block", scale_name="weight_scale_inv")},
    ),
    "fp8-dynamic": Written(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]},
        {"": eight_bits(FP8, "tensor", scale_shape=())},
    ),
    "fp8-static": Written(
        {"quant_method": "fp8", "activation_scheme": "static"},
        {"": eight_bits(FP8, "tensor", 0.02, "weight_scale_inv", ())},
    ),
    "modelopt": Written(
        {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head*"]},
        {"": eight_bits(FP8, "tensor", 0.02, scale_shape=())},
    ),
}
NEAR |= {
    "bitnet": Written({"quant_method": "bitnet"}, {"": ternary(inverse=True)}),
    "fbgemm-fp8": Written(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
        | {"modules_to_not_convert": ["model.layers.1", "lm_head"]},
        {"": eight_bits(FP8, "channel")},
        ("layers.1", "lm_head"),
    ),
    "quark-fp8-static": Written(
        quark(quark_spec("fp8_e4m3", "per_tensor"), quark_spec("fp8_e4m3", "per_tensor")),
        {"": eight_bits(FP8, "tensor", 0.02, scale_shape=())},
    ),
    "quark-fp8-token": Written(
        quark(quark_spec("fp8_e4m3", "per_channel"), quark_spec("fp8_e4m3", "per_channel", True)),
        {"": eight_bits(FP8, "channel", scale_shape=(-1,))},
    ),
    "quark-int8": Written(
        quark(quark_spec("int8", "per_tensor"), quark_spec("int8", "per_tensor", True)),
        {"": eight_bits(INT8, "tensor", scale_shape=())},
    ),
    "torchao-int8-token": Written(
        torchao("Int8DynamicActivationInt8Weight", PER_ROW),
        {"": flattened(eight_bits(INT8, "channel"), INT8)},
    ),
    "torchao-fp8-token": Written(
        torchao("Float8DynamicActivationFloat8Weight", [{"_type": "PerTensor"}] * 2),
        {"": flattened(eight_bits(FP8, "tensor"))},
    ),
}
#: Largest difference of log probabilities; fp8 keeps three bits after the leading one.
EXACT_LIMIT, NEAR_LIMIT = 1e-4, 1.5
Open = Callable[..., LLM]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("llama", tmp_path_factory.mktemp("source") / "llama", host_plugins(), 3)


@pytest.fixture
def open_llm() -> Iterator[Open]:
    opened: list[LLM] = []

    def start(path: Path, **options: object) -> LLM:
        opened.append(LLM(str(path), **OPTIONS | options))
        return opened[-1]

    yield start
    for llm in opened:
        llm.close()


def chosen(llm: LLM) -> list[tuple[list[int], list[TokenLogprobs]]]:
    """Return tokens, and log probabilities of the likeliest at each place."""
    found = []
    for result in llm.generate(PROMPTS, PARAMS):
        [output] = result.outputs
        found.append((output.token_ids, output.logprobs))
    return found


def difference(ours: LLM, theirs: LLM) -> float:
    """Return the largest difference of log probabilities while both choose the same tokens."""
    worst, places = 0.0, 0
    for (tokens, found), (wanted_tokens, wanted) in zip(chosen(ours), chosen(theirs), strict=True):
        for at in range(len(tokens)):
            a, b = _by_token(found[at]), _by_token(wanted[at])
            shared = a.keys() & b.keys()
            assert len(shared) >= 3
            places += 1
            worst = max(worst, *(abs(a[t] - b[t]) for t in shared))
            assert math.isfinite(worst)
            if tokens[at] != wanted_tokens[at]:
                break
    assert places >= len(PROMPTS)
    return worst


def _by_token(found: TokenLogprobs) -> dict[int, float]:
    return dict(zip(found.token_ids, found.logprobs, strict=True))


@pytest.mark.parametrize("name", EXACT)
def test_weights_alone(name: str, source: Path, tmp_path: Path, open_llm: Open) -> None:
    stored, plain = write(source, tmp_path, EXACT[name])
    assert difference(open_llm(stored), open_llm(plain)) < EXACT_LIMIT


@pytest.mark.parametrize("name", NEAR)
def test_weights_and_activations(name: str, source: Path, tmp_path: Path, open_llm: Open) -> None:
    stored, plain = write(source, tmp_path, NEAR[name])
    assert 1e-4 < difference(open_llm(stored), open_llm(plain)) < NEAR_LIMIT


@pytest.mark.parametrize("names", ["self_attn.{}_scale", "self_attn.{0}_proj.{0}_scale"])
def test_scales_of_keys_and_values(
    names: str, source: Path, tmp_path: Path, open_llm: Open
) -> None:
    """They are read for an fp8 cache, and matter; another cache does without them."""
    kv = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    config = compressed("float-quantized", weights(8, "float", "channel", None), kv_cache_scheme=kv)
    stored, plain = write(source, tmp_path, Written(config, {"": eight_bits(FP8, "channel")}))
    path = stored / "model.safetensors"
    tensors = load_file(path)
    layers = {name.partition("self_attn")[0] for name in tensors if "self_attn" in name}
    for layer in layers:
        for part, scale in (("k", 0.01), ("v", 0.005)):
            tensors[layer + names.format(part)] = torch.tensor([scale])
    save_file(tensors, path)
    whole = open_llm(plain)
    assert 1e-4 < difference(open_llm(stored, kv_cache_dtype="fp8"), whole) < NEAR_LIMIT
    assert difference(open_llm(stored), whole) < EXACT_LIMIT
    for layer in layers:
        tensors[layer + names.format("v")] = torch.tensor([-1.0])
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"self_attn\.v_scale is -1\.0"):
        open_llm(stored, kv_cache_dtype="fp8")


@pytest.mark.parametrize("method", ["fp8", "compressed-tensors"])
def test_scales_of_x_that_config_does_without(
    method: str, source: Path, tmp_path: Path, open_llm: Open, caplog: pytest.LogCaptureFixture
) -> None:
    name = "fp8-dynamic" if method == "fp8" else "w8a8-fp8"
    stored, _ = write(source, tmp_path, NEAR[name])
    wanted = chosen(open_llm(stored))
    path = stored / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.layers.1.mlp.down_proj.input_scale": torch.ones(1)}, path)
    assert chosen(open_llm(stored)) == wanted
    assert "1 scales of x are not used: quantization_config says" in caplog.text
