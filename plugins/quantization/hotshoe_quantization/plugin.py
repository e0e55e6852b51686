"""The plugin: which quantization methods and formats this distribution offers. Imports none."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2

METHODS = {
    "fp8": "hotshoe_quantization.online:fp8",
    "fp8_block": "hotshoe_quantization.online:fp8_block",
    "fp8_mixed": "hotshoe_quantization.online:fp8_mixed",
    "int4": "hotshoe_quantization.online:int4",
    "int4_128": "hotshoe_quantization.online:int4_128",
    "int4_64": "hotshoe_quantization.online:int4_64",
    "int4_mixed": "hotshoe_quantization.online:int4_mixed",
    "int8": "hotshoe_quantization.online:int8",
    "int8_mixed": "hotshoe_quantization.online:int8_mixed",
    "int8_weights": "hotshoe_quantization.online:int8_weights",
    "mxfp4": "hotshoe_quantization.mxfp4:Online",
}

FORMATS = {
    "auto-round": "hotshoe_quantization.auto_round:read",
    "awq": "hotshoe_quantization.four_bits:read_awq",
    "bitnet": "hotshoe_quantization.bitnet:read",
    "compressed-tensors": "hotshoe_quantization.compressed:read",
    "fbgemm_fp8": "hotshoe_quantization.fp8:read_fbgemm",
    "fp8": "hotshoe_quantization.fp8:read",
    "gptq": "hotshoe_quantization.four_bits:read_gptq",
    "hqq": "hotshoe_quantization.hqq:read",
    "modelopt": "hotshoe_quantization.fp8:read_modelopt",
    "bitsandbytes": "hotshoe_quantization.bitsandbytes:read",
    "mlx": "hotshoe_quantization.mlx:read",
    "mxfp4": "hotshoe_quantization.mxfp4:read",
    "mxfp8": "hotshoe_quantization.fp8:read_mxfp8",
    "quark": "hotshoe_quantization.quark:read",
    "torchao": "hotshoe_quantization.torchao:read",
    "w4afp8": "hotshoe_quantization.fp8:read_w4afp8",
}


@hookimpl
def hotshoe_quantizations() -> Mapping[str, str]:
    """Name the methods as `--quantization` spells them."""
    return METHODS


@hookimpl
def hotshoe_weight_formats() -> Mapping[str, str]:
    """Name the formats as checkpoints spell their `quant_method`."""
    return FORMATS


@hookimpl
def hotshoe_format_examples() -> Mapping[str, str]:
    """Say of formats what checkpoints hold, so that they are proved."""
    return {name: f"hotshoe_quantization.examples:{name}" for name in ("awq", "gptq")}
