"""The page on the engine lists the time limits of processes as they are."""

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/explanation/engine.md"
ROW = re.compile(r"^\| `([\w.]+)` \| `(\w+_S)` \| ([\d.]+) \|", re.MULTILINE)


def test_the_page_lists_the_time_limits_as_they_are() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len(rows) == 7
    for module, constant, seconds in rows:
        name = module if module.startswith("hotshoe") else f"hotshoe.engine.{module}"
        found = getattr(importlib.import_module(name), constant)
        assert found == float(seconds), (name, constant)
