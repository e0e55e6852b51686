"""Plugin discovery on pluggy: hook specifications, the manager, and its one bootstrap."""

from hotshoe.plugins.hookspecs import HOOK_API, hookimpl
from hotshoe.plugins.manager import PluginManager, PluginRecord

__all__ = ["HOOK_API", "PluginManager", "PluginRecord", "hookimpl"]
