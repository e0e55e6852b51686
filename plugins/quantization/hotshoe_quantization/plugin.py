"""The plugin: which quantisation methods this distribution offers. Imports none of them."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2

METHODS = {
    "fp8": "hotshoe_quantization.online:fp8",
    "int8": "hotshoe_quantization.online:int8",
}


@hookimpl
def hotshoe_quantizations() -> Mapping[str, str]:
    """Name the methods as `--quantization` spells them."""
    return METHODS
