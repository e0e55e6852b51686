"""The plugin is found, named and light."""

import subprocess
import sys

from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import choose_platform
from hotshoe_cpu.platform import CpuPlatform


def test_platform_is_found_by_name() -> None:
    assert isinstance(choose_platform(PluginManager(), "cpu"), CpuPlatform)


def test_listing_imports_neither_torch_nor_kernels() -> None:
    code = (
        "import sys; from hotshoe_cpu.plugin import hotshoe_platforms as p; "
        "assert 'cpu' in p(); "
        "print([m for m in ('torch', 'hotshoe_native', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
