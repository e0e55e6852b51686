"""The plugin names its source, and loads no client library to do so."""

import subprocess
import sys

from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager


def test_the_source_can_be_resolved() -> None:
    sources = PluginManager().mapping("hotshoe_model_sources")
    assert callable(resolve_lazy(sources["hub"]))


def test_the_resolver_can_be_resolved() -> None:
    resolvers = PluginManager().mapping("hotshoe_adapter_resolvers")
    assert callable(resolve_lazy(resolvers["hub"]))


def test_listing_imports_no_client_library() -> None:
    code = "import sys, hotshoe_hub.plugin; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
