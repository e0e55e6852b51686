"""The plugin: which architectures this distribution describes. Imports no torch."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_models() -> Mapping[str, str]:
    """Name the architectures as `architectures` in config.json spells them."""
    return {
        "PatchworkForCausalLM": "hotshoe_two_architectures.patchwork:build",
        "BraidForCausalLM": "hotshoe_two_architectures.braid:build",
    }
