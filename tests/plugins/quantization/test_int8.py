"""The int8 method names its operands; the plugin offers it without importing torch."""

import subprocess
import sys

from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint
from hotshoe.slots import QuantSpec
from hotshoe.slots.base import resolve_lazy
from hotshoe_quantization import plugin


def test_offered_by_name():
    manager = PluginManager([EntryPoint("q", "hotshoe-quantization", "0", lambda: plugin)])
    assert manager.records[0].error is None
    method = resolve_lazy(manager.mapping("hotshoe_quantizations")["int8"])()
    weight, activation = method.operands("model.layers.0.self_attn.q_proj")
    assert weight == QuantSpec("int8", "channel", online=True)
    assert activation == QuantSpec("int8", "token", dynamic=True)
    assert weight.symmetric and activation.symmetric and not weight.dynamic


def test_naming_the_methods_imports_no_torch():
    code = (
        "import sys, hotshoe_quantization.plugin as p; "
        "p.hotshoe_quantizations(); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
