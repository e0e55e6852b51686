"""Registers the grammar backends with hotshoe, best first. Imports neither library."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_grammars() -> Mapping[str, str]:
    return {
        "llguidance": "hotshoe_structured_output.llguidance_backend:LLGuidance",
        "xgrammar": "hotshoe_structured_output.xgrammar_backend:XGrammar",
    }
