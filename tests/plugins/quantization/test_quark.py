"""Configurations of Quark: which form a layer has, scales of keys and values, and errors."""

import pytest
from tests.plugins.quantization.test_checkpoints import MX, quark, quark_spec

from hotshoe.errors import CheckpointError
from hotshoe.layers import Share
from hotshoe.slots import QuantSpec
from hotshoe_quantization.quark import read

FP8 = quark_spec("fp8_e4m3", "per_tensor")
INT8 = quark_spec("int8", "per_channel")
MXFP4 = quark_spec("fp4", "per_group", **MX)
LAYER = "model.layers.0.self_attn.k_proj"


def layer(weight: object = FP8, inputs: object = None, outputs: object = None) -> dict:
    return {"weight": weight, "input_tensors": inputs, "output_tensors": outputs}


def test_layers_have_their_own_form() -> None:
    stored = read(
        quark(
            FP8,
            FP8,
            layer_quant_config={"*k_proj": layer(INT8), "*.experts.*": layer(MXFP4, MXFP4)},
            exclude=["lm_head", "re:.*mlp.gate$", "model.layers.1", "*.0.mlp.down_proj"],
        )
    )
    shape = (64, 64)
    storage = stored.storage("model.layers.0.mlp.up_proj", shape)
    assert storage is not None
    assert storage.weight == QuantSpec("fp8_e4m3", "channel")
    assert storage.activation == QuantSpec("fp8_e4m3", "tensor")
    storage = stored.storage(LAYER, shape)
    assert storage is not None
    assert (storage.weight, storage.activation) == (QuantSpec("int8", "channel"), None)
    storage = stored.storage("model.layers.2.mlp.experts.3.up_proj", shape)
    assert storage is not None
    assert storage.weight == QuantSpec("fp4_e2m1", "group", 32)
    for plain in ("lm_head", "model.layers.3.mlp.gate", "model.layers.1.self_attn.q_proj"):
        assert stored.storage(plain, shape) is None
    assert stored.storage("model.layers.0.mlp.down_proj", shape) is None
    assert stored.storage("model.layers.10.self_attn.q_proj", shape) is not None
    assert r"\.input_scale$" in stored.unused  # of experts, whose x stays as it is
    assert r"\.input_scale$" not in read(quark(FP8, FP8)).unused


def test_plain_unless_a_layer_is_named() -> None:
    stored = read(quark(None, layer_quant_config={"*k_proj": layer(INT8)}))  # type: ignore[arg-type]
    assert stored.storage("model.layers.0.self_attn.q_proj", (64, 64)) is None
    share = Share((slice(0, 64),), slice(0, 64))
    assert list(stored.tensors(LAYER, (64, 64), share)) == ["weight", "weight_scale"]


@pytest.mark.parametrize("outputs", [FP8, quark_spec("int8", "per_tensor")])
@pytest.mark.parametrize("newer", [False, True])
def test_scales_of_keys_and_values(outputs: dict, newer: bool) -> None:
    layers = {name: layer(outputs=outputs) for name in ("*k_proj", "*v_proj")}
    if newer:
        config = quark(FP8, kv_cache_quant_config=layers)
    else:
        config = quark(FP8, layer_quant_config=layers, export={"kv_cache_group": list(layers)})
    stored = read(config)
    read_too = outputs is FP8
    assert stored.kv_scales == (("k_scale", "v_scale") if read_too else None)
    assert any("output_scale" in pattern for pattern, _ in stored.renames) == read_too


BAD = [
    (quark(FP8, global_quant_config=None), "global_quant_config must be an object"),
    (quark(FP8, export={"weight_format": "fake_quantized"}), "weight_format is read as real_quant"),
    (quark(FP8, export={"pack_method": "other"}), "pack_method is read as reorder or order"),
    (quark(FP8, export=3), "export must be an object, not 3"),
    (quark(FP8, layer_type_quant_config={"Linear": layer()}), "layer_type_quant_config is not"),
    (quark(FP8, algo_config=[{"name": "rotation"}]), "algo_config rotation is not read"),
    (quark(FP8, algo_config=[7]), "algo_config must be an object"),
    (quark(FP8, layer_quant_config=[]), "layer_quant_config must be an object"),
    (quark(FP8, layer_quant_config={"a": 1}), "layer_quant_config.a must be an object"),
    (quark(FP8, exclude="lm_head"), "exclude must be a list of names"),
    (quark([FP8, INT8]), "weight in several steps is not read"),  # type: ignore[arg-type]
    (quark(FP8, [FP8]), "input_tensors in several steps"),  # type: ignore[arg-type]
    (quark(None, FP8), "input_tensors are not computed with plain weights"),  # type: ignore[arg-type]
    (
        quark(quark_spec("int4", "per_group")),
        "dtype is read as fp8_e4m3 or int8 or fp4, not 'int4'",
    ),
    (quark(quark_spec("fp6_e3m2", "per_group")), "not 'fp6_e3m2'"),
    (quark(quark_spec("int8", "per_group")), "qscheme is read as per_tensor or per_channel"),
    (quark(FP8 | {"is_dynamic": True}), "is_dynamic must be false"),
    (quark(INT8 | {"symmetric": False}), "symmetric must be true: zero points"),
    (quark(INT8 | {"ch_axis": 1}), "ch_axis is read as 0, not 1"),
    (quark(MXFP4 | {"group_size": 16}), "group_size is read as 32, not 16"),
    (quark(MXFP4 | {"scale_format": "float"}), "scale_format is read as e8m0"),
    (quark(MXFP4, quark_spec("bf16", "per_group")), "dtype is read as fp4 or fp6_e2m3"),
    (quark(FP8, INT8), "input_tensors.dtype is read as fp8_e4m3, not 'int8'"),
    (quark(INT8, quark_spec("int8", "per_channel")), "qscheme is read as per_tensor"),
    (quark(INT8, quark_spec("int8", "per_group", True)), "qscheme is read as per_tensor or per_ch"),
    (quark(INT8, INT8 | {"symmetric": False}), "symmetric must be true: activations"),
    (quark(FP8, global_quant_config=layer(outputs=FP8)), "output_tensors are not computed but"),
    (quark(FP8, global_quant_config=layer() | {"bias": FP8}), "bias must be null"),
    (quark(FP8, kv_cache_quant_config={"*k_proj": {}}), "output_tensors must be an object"),
]


@pytest.mark.parametrize(("config", "words"), BAD)
def test_what_is_not_read_is_named(config: dict, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(config)


def test_layers_that_two_patterns_mean() -> None:
    layers = {"*k_proj": layer(INT8), "*self_attn*": layer(FP8)}
    with pytest.raises(CheckpointError, match=r"means .*k_proj by \*k_proj and \*self_attn"):
        read(quark(FP8, layer_quant_config=layers)).storage(LAYER, (64, 64))


def test_groups_divide_the_inputs() -> None:
    with pytest.raises(CheckpointError, match=r"has 48 inputs, which the group_size 32"):
        read(quark(MXFP4)).storage(LAYER, (64, 48))
