"""What the distribution offers, and that listing it imports neither library."""

import subprocess
import sys

from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe_structured_output import plugin


def test_backends_come_best_first() -> None:
    offered = plugin.hotshoe_grammars()
    assert list(offered) == ["llguidance", "xgrammar"]
    for name, target in offered.items():
        assert resolve_lazy(target)().missing() is None, f"{name} is not installed"


def test_the_plugin_is_found() -> None:
    [record] = [r for r in PluginManager().records if r.name == "structured-output"]
    assert record.error is None
    assert record.hooks == ("hotshoe_grammars",)


def test_no_library_is_imported_before_a_grammar_is_compiled() -> None:
    code = (
        "import sys\n"
        "from hotshoe.types import GrammarSpec\n"
        "from hotshoe_structured_output.llguidance_backend import LLGuidance\n"
        "from hotshoe_structured_output.xgrammar_backend import XGrammar\n"
        "for backend in (LLGuidance(), XGrammar()):\n"
        "    assert backend.missing() is None\n"
        "    assert backend.refusal(GrammarSpec.json_object()) is None\n"
        "print(*({'llguidance', 'xgrammar', 'torch', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
