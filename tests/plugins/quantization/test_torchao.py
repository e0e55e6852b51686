"""Configurations of torchao: which form a layer has, zero points, and errors."""

import pytest
import torch
from tests.plugins.quantization.test_checkpoints import PER_GROUP, PER_ROW, torchao
from tests.plugins.quantization.writers import nibbles

from hotshoe.errors import CheckpointError
from hotshoe.layers import Share, Storage
from hotshoe.loader.sources import Stream
from hotshoe.slots import QuantSpec
from hotshoe_quantization.torchao import read

INT8 = torchao("Int8WeightOnly", PER_ROW)["quant_type"]["default"]
FLOAT8 = torchao("Float8WeightOnly", PER_ROW)["quant_type"]["default"]
BLOCK = {"_type": "PerBlock", "_data": {"block_size": [128, 128]}}


def config(default: object, **more: object) -> dict:
    return torchao("", {}) | {"quant_type": {"default": default}} | more


def by_name(**named: object) -> dict:
    names = {name.replace("__", "."): one for name, one in named.items()}
    data = {"fqn_to_config": names, "module_fqn_to_config": names}
    return config({"_type": "FqnToConfig", "_version": 1, "_data": data})


def test_layers_by_name() -> None:
    names = {"re:model.layers.*q_proj": FLOAT8, "a.0.down.weight": None, "a.1.down": FLOAT8}
    stored = read(by_name(_default=INT8, **names))

    def form(layer: str) -> str | None:
        storage = stored.storage(layer, (64, 64))
        return None if storage is None else storage.weight.format

    assert form("model.layers.3.self_attn.q_proj") == "fp8_e4m3"
    assert form("model.layers.3.self_attn.q_proj_a") == "int8"
    assert (form("a.0.down"), form("a.1.down"), form("a.2.down")) == (None, "fp8_e4m3", "int8")
    assert form("lm_head") is None
    others = read(by_name(**names)).storage("a.2.down", (64, 64))
    assert others is None


def test_layers_that_are_kept() -> None:
    stored = read(torchao("Int8WeightOnly", PER_ROW) | {"modules_to_not_convert": ["b", "a.1"]})
    assert stored.storage("a.1.up", (8, 8)) is None
    assert stored.storage("a.0.b", (8, 8)) is None
    assert stored.storage("lm_head", (8, 8)) is not None


@pytest.mark.parametrize(
    ("shared", "form"),
    [
        (PER_ROW, QuantSpec("int8", "channel")),
        (PER_GROUP, QuantSpec("int8", "group", 32)),
        ({"_type": "PerAxis", "_data": {"axis": 0}}, QuantSpec("int8", "channel")),
        ({"_type": "PerGroup", "_data": {"group_size": -1}}, QuantSpec("int8", "channel")),
        ([PER_GROUP, PER_ROW], QuantSpec("int8", "channel")),
    ],
)
def test_numbers_that_share_a_scale(shared: object, form: QuantSpec) -> None:
    storage = read(torchao("Int8WeightOnly", shared)).storage("a", (64, 64))  # type: ignore[arg-type]
    assert storage is not None and storage.weight == form


def test_x_beside_integers_of_four_bits_is_quantized_where_a_kernel_is() -> None:
    config = torchao("Int8DynamicActivationIntxWeight", PER_GROUP, weight_granularity=PER_GROUP)
    storage = read(config).storage("a", (64, 64))
    form, x = QuantSpec("int4", "group", 32), QuantSpec("int8", "token", dynamic=True)
    assert storage == Storage(form, native=Storage(form, x))
    assert storage.left == x


def test_zero_points_of_symmetric_numbers_are_zero() -> None:
    stored = read(torchao("Int8WeightOnly", PER_ROW))
    tensors = {"a._weight_qdata": torch.ones(2, 2), "a._weight_zero_point": torch.zeros(2, 1)}
    source = stored.decode(Stream(tensors.items()))  # type: ignore[attr-defined]
    assert list(source.names()) == ["a._weight_qdata"]
    tensors["a._weight_zero_point"][1] = 1
    with pytest.raises(CheckpointError, match=r"a\._weight_zero_point is not zero"):
        stored.decode(Stream(tensors.items()))  # type: ignore[attr-defined]


def test_integers_of_four_bits_are_cut_by_rank() -> None:
    parts, dense = nibbles(32)(torch.randn(6, 128))
    stored = read(torchao("Int4WeightOnly", PER_ROW, group_size=32))
    share = Share((slice(0, 2), slice(4, 6)), slice(64, 128))
    pieces = {
        name: spec.keep(parts[f"_{name}" if name != "weight" else "_weight_qdata"])
        for name, spec in stored.tensors("a", (6, 128), share).items()
    }
    made = stored.canonical("a", pieces)
    triples = zip(made["weight"], made["weight_scale"], made["weight_zero_point"], strict=True)
    for (q, scale, zero), rows in zip(triples, share.rows, strict=True):
        found = (q.float().unflatten(1, (-1, 32)) - zero[..., None]) * scale[..., None]
        torch.testing.assert_close(found.flatten(1), dense[rows, 64:], rtol=1e-5, atol=1e-5)
        assert int(q.min()) >= -8 and int(q.max()) <= 7


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("weight_scale", 0.0, r"a\.weight_scale holds 0"),
        ("weight_scale", torch.nan, r"a\.weight_scale, or .* holds NaN"),
        ("weight_zero_point", torch.inf, r"a\.weight_zero_point, or .* holds NaN or infinity"),
    ],
)
def test_scales_of_four_bits_are_numbers(name: str, value: float, words: str) -> None:
    parts, _ = nibbles(32)(torch.randn(4, 32))
    parts[f"_{name}"][0, 1] = value
    pieces = {"weight": [parts["_weight_qdata"]]}
    pieces |= {one: [parts[f"_{one}"]] for one in ("weight_scale", "weight_zero_point")}
    with pytest.raises(CheckpointError, match=words):
        read(torchao("Int4WeightOnly", PER_ROW, group_size=32)).canonical("a", pieces)


BAD = [
    (config(None), "quant_type.default must be an object"),
    (config({"_type": ["Int8WeightOnlyConfig"]}), "_type is read as .*, not .'Int8Weight"),
    (torchao("", {}) | {"quant_type": "int8_weight_only"}, "must be an object with default alone"),
    (torchao("", {}) | {"quant_type": {"default": INT8, "b": 1}}, "with default alone"),
    (config(INT8, include_input_output_embeddings=True), "embeddings stay plain"),
    (config(INT8, modules_to_not_convert="a"), "must be a list of names"),
    (config(INT8 | {"_version": 1}), "_version must be 2; quantize the model again"),
    (config(INT8 | {"_data": None}), "_data must be an object"),
    (torchao("NVFP4WeightOnly", PER_GROUP), "_type is read as .* not 'NVFP4WeightOnlyConfig'"),
    (torchao("Int4WeightOnly", PER_ROW, group_size=48), "group_size is read as 32 or 64"),
    (
        torchao("Int4WeightOnly", PER_ROW, int4_packing_format={"_data": "TILE_PACKED_TO_4D"}),
        "int4_packing_format._data is read as plain",
    ),
    (torchao("GemliteUIntXWeightOnly", PER_GROUP), "not 'GemliteUIntX.*; use another quantization"),
    (
        torchao("Int8DynamicActivationIntxWeight", PER_GROUP, weight_dtype={"_data": "int8"}),
        "weight_dtype._data is read as int4, not 'int8'; use another quantization",
    ),
    (torchao("Int8WeightOnly", BLOCK), "_type is read as .* not 'perblock'"),
    (torchao("Int8WeightOnly", PER_GROUP | {"_data": {}}), "group_size must be a positive"),
    (torchao("Int8WeightOnly", {"_type": "PerAxis", "_data": {"axis": 1}}), "axis is read as 0"),
    (torchao("Int8WeightOnly", 3), "granularity must be an object"),  # type: ignore[arg-type]
    (torchao("Int8WeightOnly", []), "granularity must not be empty"),  # type: ignore[arg-type]
    (torchao("Float8WeightOnly", PER_ROW, weight_dtype={"_data": "float8_e5m2"}), "float8_e4m3fn"),
    (torchao("IntxWeightOnly", PER_ROW, weight_dtype={"_data": "int3"}), "int4 or int8, not"),
    (torchao("IntxWeightOnly", PER_ROW, mapping_type={"_data": "ODD"}), "asymmetric, not 'odd'"),
    (
        torchao(
            "Int8DynamicActivationInt8Weight", PER_ROW, act_mapping_type={"_data": "ASYMMETRIC"}
        ),
        "act_mapping_type._data is read as symmetric",
    ),
    (
        torchao("Int8DynamicActivationInt8Weight", PER_ROW, weight_only_decode=True),
        "weight_only_decode is read as False",
    ),
    (
        torchao("Float8DynamicActivationFloat8Weight", PER_ROW, activation_value_ub=1.0),
        "activation_value_ub must be null",
    ),
    (
        torchao("Float8DynamicActivationFloat8Weight", PER_ROW, packing_format={"_data": "SPARSE"}),
        "packing_format._data is read as plain",
    ),
    (config({"_type": "FqnToConfig", "_data": {}}), "fqn_to_config must be an object"),
    (by_name(a=5), "default.a must be an object"),
]


@pytest.mark.parametrize(("values", "words"), BAD)
def test_what_is_not_read_is_named(values: dict, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(values)
