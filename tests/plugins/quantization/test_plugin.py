"""The plugin offers its methods by name, without importing torch."""

import subprocess
import sys

from hotshoe.layers import WeightFormat
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint
from hotshoe.slots.base import resolve_lazy
from hotshoe_quantization import plugin


def test_loads_as_a_plugin_and_every_method_builds():
    manager = PluginManager([EntryPoint("q", "hotshoe-quantization", "0", lambda: plugin)])
    assert manager.records[0].error is None
    offered = manager.mapping("hotshoe_quantizations")
    assert set(offered) == {
        "fp8",
        "fp8_block",
        "fp8_mixed",
        "int4",
        "int4_128",
        "int4_64",
        "int4_mixed",
        "int8",
        "int8_mixed",
        "int8_weights",
        "mxfp4",
    }
    for target in offered.values():
        assert isinstance(resolve_lazy(target)(), WeightFormat)


def test_naming_the_methods_imports_no_torch():
    code = (
        "import sys, hotshoe_quantization.plugin as p; "
        "p.hotshoe_quantizations(); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
