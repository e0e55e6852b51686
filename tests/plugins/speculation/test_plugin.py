"""The plugin offers its methods by name, without importing numpy or torch."""

import subprocess
import sys

import torch

from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint
from hotshoe_speculation import plugin


def test_loads_as_a_plugin_and_every_method_starts_a_sequence():
    manager = PluginManager([EntryPoint("s", "hotshoe-speculation", "0", lambda: plugin)])
    assert manager.records[0].error is None
    offered = manager.mapping("hotshoe_proposers")
    assert set(offered) == {"auto", "ngram", "ngram_device", "suffix"}
    on_device = resolve_lazy(offered.pop("ngram_device"))({})
    assert on_device.search(torch.tensor([[5]]), torch.tensor([1]), 3).tolist() == [[-1] * 3]
    for target in offered.values():
        assert resolve_lazy(target)({}).follow().propose([5], 3) == []


def test_naming_the_methods_imports_nothing_heavy():
    code = (
        "import sys, hotshoe_speculation.plugin as p; p.hotshoe_proposers(); "
        "print({'numpy', 'torch'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
