"""Configurations that are wrong, or mean what is not read: one clear error each."""

import pytest
import torch
from tests.plugins.quantization.test_checkpoints import quark as quark_config
from tests.plugins.quantization.test_checkpoints import quark_spec
from tests.plugins.quantization.writers import gptq

from hotshoe.errors import CheckpointError
from hotshoe.layers import Share, WeightFormat
from hotshoe.loader.sources import Stream
from hotshoe_quantization import auto_round, compressed, four_bits, fp8, quark

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
INSIDE = "modules_in_block_to_quantize"
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
MIXED = {"quant_algo": "MIXED_PRECISION"}
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


def grouped(weights: dict | None = None, inputs: object = None, **more: object) -> dict:
    group = {
        "targets": ["Linear"],
        "weights": WEIGHTS | (weights or {}),
        "input_activations": inputs,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        **more,
    }


BAD = [
    (four_bits.read_awq, AWQ | {"bits": 3}, "bits is read as 4, not 3"),
    (four_bits.read_awq, AWQ | {"bits": "4"}, "bits is read as 4, not '4'"),
    (four_bits.read_awq, AWQ | {"version": "gemv"}, "version is read as gemm, not 'gemv'"),
    (four_bits.read_awq, AWQ | {"zero_point": "no"}, "zero_point is read as True or False"),
    (four_bits.read_awq, AWQ | {"group_size": 0}, "group_size must be a positive integer"),
    (four_bits.read_awq, AWQ | {"group_size": None}, "group_size must be a positive integer"),
    (four_bits.read_awq, AWQ | {"modules_to_not_convert": "lm_head"}, "must be a list of names"),
    (four_bits.read_gptq, GPTQ | {"bits": 5}, "bits is read as 2 or 3 or 4 or 8, not 5"),
    (four_bits.read_gptq, GPTQ | {"sym": 1}, "sym is read as True or False, not 1"),
    (four_bits.read_gptq, GPTQ | {"dynamic": ["x"]}, "dynamic must be an object, not"),
    (four_bits.read_gptq, GPTQ | {"dynamic": {"x": 4}}, "dynamic.x must be an object, not 4"),
    (four_bits.read_gptq, GPTQ | {"dynamic": {"x": {"bits": 5}}}, "dynamic.x.bits is read as"),
    (four_bits.read_gptq, GPTQ | {"is_marlin_format": True}, "is_marlin_format is read as False"),
    (four_bits.read_gptq, GPTQ | {INSIDE: "q_proj"}, "must be a list of lists of names, not 'q_pr"),
    (four_bits.read_gptq, GPTQ | {INSIDE: []}, "must be a list of lists of names"),
    (four_bits.read_gptq, GPTQ | {INSIDE: [["q_proj", 3]]}, "must be a list of lists of names"),
    (auto_round.read, ROUND | {"packing_format": "mlx"}, "packing_format is read as .* not 'mlx'"),
    (auto_round.read, ROUND | {"act_bits": 8}, "act_bits is read as 16 or 32, not 8"),
    (auto_round.read, ROUND | {"data_type": "mx_fp"}, "data_type is read as int, not 'mx_fp'"),
    (auto_round.read, ROUND | {"rotation_config": {"a": 1}}, "rotation_config is not read"),
    (
        auto_round.read,
        ROUND | {"packing_format": auto_round.PACKED, "data_type": "nv_fp", "bits": 8},
        "data_type 'nv_fp' of 8 bits is not read in auto_round:llm_compressor",
    ),
    (
        auto_round.read,
        ROUND | {"packing_format": auto_round.PACKED, "data_type": "nv_fp"},
        "group_size is read as 16, not 32",
    ),
    (fp8.read_w4afp8, {"group_size": -1}, "group_size must be that of a group"),
    (fp8.read_fbgemm, {"modules_to_not_convert": 3}, "modules_to_not_convert must be a list"),
    (four_bits.read_gptq, GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is read as"),
    (fp8.read, {"weight_block_size": [128]}, "weight_block_size must be two sizes"),
    (fp8.read, {"weight_block_size": [128, 0]}, "weight_block_size must be two sizes"),
    (fp8.read, {"fmt": "e5m2"}, "fmt is read as e4m3"),
    (
        fp8.read,
        {"weight_scale_semantics": "inverse"},
        "semantics is read as multiply, not 'inverse'",
    ),
    (fp8.read, {"activation_scheme": "both"}, "activation_scheme is read as dynamic or static"),
    (
        fp8.read,
        {"weight_block_size": [128, 128], "activation_scheme": "static"},
        "activation_scheme must be dynamic",
    ),
    (fp8.read, {"expert_dtype": "int4"}, "expert_dtype is read as fp8 or fp4, not 'int4'"),
    (fp8.read_mxfp8, {"weight_block_size": [128, 128]}, r"must be \[1, 32\], not \[128, 128\]"),
    (fp8.read_mxfp8, {"activation_scheme": "static"}, "activation_scheme is read as dynamic"),
    (
        fp8.read_modelopt,
        {"quant_algo": "W4A8_AWQ"},
        "quant_algo is read as fp8 .*'w4a8_awq'",
    ),
    (fp8.read_modelopt, {}, "quant_algo is read as"),
    (fp8.read_modelopt, MIXED, "quantized_layers must hold at least one layer"),
    (fp8.read_modelopt, MIXED | {"quantized_layers": {"a": 3}}, "quantized_layers.a must be an ob"),
    (
        fp8.read_modelopt,
        MIXED | {"quantized_layers": {"a": {"quant_algo": "W4A16_AWQ"}}},
        "quantized_layers.a.quant_algo is read as fp8 .*'w4a16_awq'",
    ),
    (
        fp8.read_modelopt,
        MIXED | {"quantized_layers": {"a": {"quant_algo": "NVFP4", "group_size": 32}}},
        "quantized_layers.a.group_size is read as 16, not 32",
    ),
    (
        fp8.read_modelopt,
        {"quant_algo": "NVFP4", "group_size": 32},
        "quantization_config.group_size is read as 16, not 32",
    ),
    (
        fp8.read_modelopt,
        {"quant_algo": "MXFP8", "config_groups": {"a": {"weights": {"group_size": 16}}}},
        "config_groups.a.weights.group_size is read as 32, not 16",
    ),
    (
        fp8.read_modelopt,
        {"quant_algo": "FP8", "kv_cache_quant_algo": 8},
        "kv_cache_quant_algo must be a name, not 8",
    ),
    (compressed.read, {"format": "pack-quantized"}, "config_groups must hold at least one"),
    (compressed.read, grouped(config_groups={"a": 3}), "config_groups.a must be an object"),
    (compressed.read, grouped(format="marlin-24"), "format is read as .*, not 'marlin-24'"),
    (compressed.read, grouped({"num_bits": 3}), "num_bits 3 of type int is not read"),
    (compressed.read, grouped({"num_bits": 4, "type": "float"}), "num_bits 4 of type float"),
    (compressed.read, grouped({"group_size": -3}), "group_size must be a positive integer"),
    (compressed.read, grouped({"strategy": "tensor"}), "strategy must be channel or group"),
    (compressed.read, grouped({"actorder": "some"}), "actorder is read as"),
    (compressed.read, grouped({"dynamic": True}), "dynamic must be false"),
    (compressed.read, grouped(format="float-quantized"), "num_bits must be 8"),
    (compressed.read, grouped(format="mxfp8-quantized"), "num_bits is read as 8, not 4"),
    (compressed.read, grouped(quantization_status="calibration"), "quantization_status is read as"),
    (compressed.read, grouped(sparsity_config={"format": "x"}), "sparsity_config is not read"),
    (compressed.read, grouped(kv_cache_scheme="fp8"), "kv_cache_scheme must be an object"),
    (compressed.read, grouped(kv_cache_scheme=[]), "kv_cache_scheme must be an object"),
    (compressed.read, grouped(kv_cache_scheme={}), "kv_cache_scheme.num_bits is read as 4 or 8"),
    (compressed.read, grouped(kv_cache_scheme=KV | {"num_bits": 3}), "num_bits is read as 4 or 8"),
    (compressed.read, grouped(kv_cache_scheme=KV | {"type": "real"}), "type is read as int or"),
    (compressed.read, grouped(kv_cache_scheme=KV | {"strategy": "all"}), "strategy is read as"),
    (compressed.read, grouped(kv_cache_scheme=KV | {"dynamic": "yes"}), "dynamic is read as"),
    (compressed.read, grouped(kv_cache_scheme=KV | {"symmetric": False}), "symmetric must be true"),
    (
        compressed.read,
        grouped({"num_bits": 8}, inputs={"num_bits": 8, "type": "int", "symmetric": False}),
        "symmetric must be true: activations",
    ),
    (
        compressed.read,
        grouped({"num_bits": 8}, inputs={"num_bits": 8, "strategy": "token", "dynamic": True}),
        "input_activations are not computed with packed weights",
    ),
    (compressed.read, grouped(inputs={"num_bits": 8}), "dynamic is read as True, not False"),
    (compressed.read, grouped(inputs={"num_bits": 4, "dynamic": True}), "num_bits is read as 8"),
]


@pytest.mark.parametrize(("read", "config", "words"), BAD)
def test_what_is_not_read_is_named(read, config: dict, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(config)


def test_layers_of_modelopt_are_named_once() -> None:
    listed = {"a.*": {"quant_algo": "FP8"}, "a.b": {"quant_algo": "NVFP4"}}
    stored = fp8.read_modelopt(MIXED | {"quantized_layers": listed})
    assert stored.storage("other", (64, 64)) is None
    assert stored.storage("a.c", (64, 64)).activation is not None
    with pytest.raises(CheckpointError, match=r"means a\.b by several names that differ"):
        stored.storage("a.b", (64, 64))


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({}, True),
        ({"type": "int", "symmetric": False}, False),
        ({"strategy": "attn_head"}, False),
        ({"strategy": "token", "dynamic": True}, False),
        ({"num_bits": 4, "strategy": "tensor_group"}, False),
    ],
)
def test_scales_of_whole_keys_and_values_are_read(changes: dict, read: bool) -> None:
    scheme = KV | changes
    for stored in (
        compressed.read(grouped(kv_cache_scheme=scheme)),
        fp8.read_modelopt({"quant_algo": "FP8", "kv_cache_scheme": scheme}),
    ):
        assert stored.kv_scales == (("k_scale", "v_scale") if read else None)


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ({"kv_cache_quant_algo": "FP8"}, True),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, True),
        ({"kv_cache_quant_algo": "NVFP4"}, False),
        ({}, False),
    ],
)
def test_both_files_of_modelopt_say_whether_a_cache_has_scales(values: dict, read: bool) -> None:
    stored = fp8.read_modelopt({"quant_algo": "FP8", **values})
    assert (stored.kv_scales is not None) == read


@pytest.mark.parametrize(
    "stored",
    [
        four_bits.read_awq(AWQ | {"group_size": 48}),
        four_bits.read_gptq(GPTQ | {"group_size": 48}),
        compressed.read(grouped({"group_size": 48})),
    ],
)
def test_group_sizes_divide_the_inputs(stored) -> None:
    with pytest.raises(CheckpointError, match=r"group_size 48 .* does not divide"):
        stored.storage("model.layers.0.mlp.down_proj", (64, 64))


def test_sizes_fill_words() -> None:
    for stored in (
        four_bits.read_awq(AWQ | {"group_size": -1}),
        four_bits.read_gptq(GPTQ | {"group_size": -1}),
    ):
        with pytest.raises(CheckpointError, match="which words of 8 numbers do not fill"):
            stored.storage("a", (36, 36))


def test_act_order_is_not_divided_among_ranks() -> None:
    stored = four_bits.read_gptq(GPTQ | {"desc_act": True})
    stored.tensors("a", (64, 64), Share((slice(0, 32),), slice(0, 64)))
    with pytest.raises(CheckpointError, match=r"act-order.*tensor_parallel_size 1"):
        stored.tensors("a", (64, 64), Share((slice(0, 64),), slice(0, 32)))


def test_layers_that_two_groups_name() -> None:
    groups = {
        "a": {"targets": ["re:.*q_proj"], "weights": WEIGHTS},
        "b": {"targets": ["re:.*self_attn.*"], "weights": WEIGHTS | {"group_size": 16}},
    }
    stored = compressed.read(grouped(config_groups=groups))
    assert stored.storage("x.self_attn.k_proj", (64, 64)).weight.group_size == 16
    assert stored.storage("x.mlp.up_proj", (64, 64)) is None
    with pytest.raises(CheckpointError, match=r"names x\.self_attn\.q_proj in several"):
        stored.storage("x.self_attn.q_proj", (64, 64))


def test_malformed_expressions() -> None:
    stored = compressed.read(grouped(ignore=["re:*"]))
    with pytest.raises(CheckpointError, match=r"ignore holds the malformed .* '\*'"):
        stored.storage("a", (64, 64))


def decoded(stored: WeightFormat, **tensors: torch.Tensor) -> list[str]:
    """Return which names are left of a layer's tensors."""
    assert stored.decode is not None
    source = Stream([(f"model.layers.0.a.{name}", tensor) for name, tensor in tensors.items()])
    return [name.removeprefix("model.layers.0.a.") for name in stored.decode(source).names()]


def test_columns_that_belie_the_order() -> None:
    in_order = torch.arange(64, dtype=torch.int32) // 32
    plain = four_bits.read_gptq(GPTQ)
    assert decoded(plain, qweight=torch.ones(1), g_idx=in_order) == ["qweight"]
    with pytest.raises(CheckpointError, match="g_idx has columns out of order, though"):
        decoded(plain, g_idx=in_order.flip(0))
    assert decoded(four_bits.read_gptq(GPTQ | {"desc_act": True}), g_idx=in_order) == ["g_idx"]
    with pytest.raises(CheckpointError, match="g_idx has columns out of order, though"):
        decoded(auto_round.read(ROUND), g_idx=in_order.flip(0))
    by_row = four_bits.read_gptq(GPTQ | {"group_size": -1, "desc_act": True})
    assert decoded(by_row, g_idx=torch.zeros(64, dtype=torch.int32)) == []


@pytest.mark.parametrize(
    ("stored", "middle"),
    [
        (compressed.read(grouped()), -2004318072),
        (quark.read(quark_config(quark_spec("int8", "per_channel"))), 0),
    ],
)
def test_zero_points_that_nobody_asks_for(stored: WeightFormat, middle: int) -> None:
    zeros = torch.full((4, 2), middle, dtype=torch.int32)
    assert decoded(stored, weight_zero_point=zeros, weight=zeros) == ["weight"]
    assert decoded(stored, weight_zero_point=torch.zeros(4, 1, dtype=torch.int8)) == []
    for name in ("weight_zero_point", "input_zero_point"):
        with pytest.raises(CheckpointError, match=f"{name} is not zero, though"):
            decoded(stored, **{name: torch.full((4, 2), 3, dtype=torch.int8)})


def test_zero_points_that_belie_symmetry() -> None:
    stored = four_bits.read_gptq(GPTQ | {"checkpoint_format": "gptq_v2"})
    tensors, _ = gptq(4, 32, True, version=1)(torch.randn(16, 64))
    pieces = {name: [tensor] for name, tensor in tensors.items()}
    with pytest.raises(CheckpointError, match=r"qzeros.* correct config.json"):
        stored.canonical("a", pieces)
