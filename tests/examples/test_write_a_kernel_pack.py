"""docs/how-to/write-a-kernel-pack.md, followed to the letter, ends with a pack that conforms."""

import importlib
import re
from pathlib import Path

import pytest

from hotshoe.cli.plugins import packed
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint, installed_entry_points
from hotshoe_conformance.kit import Kit, Options

BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def test_the_page_leads_to_a_pack_that_conforms(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (root / "docs/how-to/write-a-kernel-pack.md").read_text(encoding="utf-8")
    written = BLOCK.findall(page)
    for title, text in written:
        (tmp_path / title).parent.mkdir(exist_ok=True)
        (tmp_path / title).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = importlib.import_module("hotshoe_swift.plugin")
    own = EntryPoint("swift", "hotshoe-swift", "0.1", lambda: plugin)
    plugins = PluginManager([*installed_entry_points(), own])
    [pack] = packed(plugins)
    assert (pack["package"], pack["platform"]) == ("hotshoe-swift 0.1", "cpu")
    report = Kit("cpu", Options(quick=True, slot="rms_norm", candidate="swift"), plugins).run()
    [found] = report.slots[0].candidates
    assert found.passed
    assert not report.defects
    assert sum(text.count("\n") for _, text in written) <= 60  # a kernel included
