"""The plugin names its executor without importing Ray."""

import subprocess
import sys

from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint
from hotshoe_ray import plugin


def test_loads_as_a_plugin() -> None:
    manager = PluginManager([EntryPoint("r", "hotshoe-executor-ray", "0", lambda: plugin)])
    assert manager.records[0].error is None
    offered = manager.mapping("hotshoe_executors")
    assert set(offered) == {"ray"}
    assert callable(resolve_lazy(offered["ray"]))


def test_naming_the_executor_imports_nothing_heavy() -> None:
    code = (
        "import sys, hotshoe_ray.plugin as p; p.hotshoe_executors(); "
        "print({'ray', 'torch'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
