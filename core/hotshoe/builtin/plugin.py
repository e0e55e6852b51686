"""Core's own plugin: the null platform. Registered by entry point like any other."""

from collections.abc import Mapping

from hotshoe.plugins.hookspecs import hookimpl

HOTSHOE_HOOK_API = 1


@hookimpl
def hotshoe_platforms() -> Mapping[str, str]:
    return {"null": "hotshoe.builtin.null:NullPlatform"}
