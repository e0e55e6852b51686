"""The plugin: names the Hub as a source of models. Imports no client library."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_model_sources() -> Mapping[str, str]:
    """Name the source."""
    return {"hub": "hotshoe_hub.source:fetch"}


@hookimpl
def hotshoe_adapter_resolvers() -> Mapping[str, str]:
    """Name the resolver, which serves where `--lora-resolver hub` says so."""
    return {"hub": "hotshoe_hub.adapters:find_adapter"}
