"""Imports what engines of a model do, as far as no device is taken.

To explain a model is to build its layers, which choose their operations and so import them, on the
device that has no memory.
"""

from __future__ import annotations

from hotshoe.config import EngineConfig
from hotshoe.engine.explain.explanation import explain
from hotshoe.platform import Preparing
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import choose_platform


def import_model(config: EngineConfig, plugins: PluginManager) -> str:
    """Import what engines of a model need, and return the device that they would take.

    Raises:
        UserError: They could not be built with the defaults of all options.
    """
    from hotshoe.runner.forkable import one_thread

    with one_thread():
        found = explain(config, plugins)
        platform = choose_platform(plugins, found.config.platform)
        if isinstance(platform, Preparing):
            platform.prepare()
    return found.facts.device
