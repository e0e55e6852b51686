"""What README.md shows is true."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hotshoe.platform import Available
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint
from hotshoe.plugins.platforms import choose_platform, list_platforms
from hotshoe.slots import SLOTS, NormSpec, QuantSpec, Selector


@pytest.fixture(scope="module")
def readme() -> str:
    return (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def toaster(readme: str, monkeypatch: pytest.MonkeyPatch) -> PluginManager:
    """The platform example, as if it were installed."""
    [source] = [block for block in blocks(readme, "python") if "Platform" in block]
    plugin = ModuleType("toaster.plugin")
    exec(source, plugin.__dict__)
    monkeypatch.setitem(sys.modules, "toaster", ModuleType("toaster"))
    monkeypatch.setitem(sys.modules, "toaster.plugin", plugin)
    return PluginManager([EntryPoint("toaster", "toaster", "1", lambda: plugin)])


def test_the_platform_example_is_a_platform(toaster: PluginManager) -> None:
    assert [record.error for record in toaster.records] == [None]
    [status] = list_platforms(toaster)
    assert (status.name, status.detection) == ("toaster", Available(10))
    platform = choose_platform(toaster, "auto")
    selector = Selector(SLOTS, platform.candidates(), platform.facts())
    decision = selector.decide("rms_norm", NormSpec(64, 1e-6, "float32"))
    assert decision.chosen == "toasted"
    quantized = NormSpec(64, 1e-6, "float32", quant=QuantSpec("int8", "token", dynamic=True))
    for spec in (NormSpec(65, 1e-6, "float32"), quantized):
        refused = selector.decide("rms_norm", spec)
        assert refused.chosen == "reference"
        assert dict(refused.others)["toasted"].reason == "wants multiples of 16, unquantized"
