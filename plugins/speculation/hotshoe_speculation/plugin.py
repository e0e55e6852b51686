"""The plugin: which methods of speculation this distribution offers. Imports none of them."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2

METHODS = {
    "auto": "hotshoe_speculation.suffix:SuffixProposer",
    "ngram": "hotshoe_speculation.ngram:NgramProposer",
    "ngram_device": "hotshoe_speculation.ngram_device:DeviceNgramProposer",
    "suffix": "hotshoe_speculation.suffix:SuffixProposer",
}


@hookimpl
def hotshoe_proposers() -> Mapping[str, str]:
    """Name the methods as `speculative_config.method` spells them."""
    return METHODS
