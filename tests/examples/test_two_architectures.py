"""The example of architectures from outside: its own tests pass, and its page shows its files."""

import json
import re
from pathlib import Path

import pytest

#: Most lines of a module, blank ones and docstrings among them.
FEW = 60
BLOCK = re.compile(r'^```python title="([\w/.]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
NAMES = ["BraidForCausalLM", "PatchworkForCausalLM"]


@pytest.fixture
def example(root: Path) -> Path:
    return root / "examples/two-architectures"


def test_the_page_shows_the_files(root: Path, example: Path) -> None:
    page = (root / "docs/how-to/add-an-architecture.md").read_text(encoding="utf-8")
    shown = BLOCK.findall(page)
    assert {Path(title).stem for title, _ in shown} == {"plugin", "patchwork", "braid"}
    for title, text in shown:
        assert (example / title).read_text(encoding="utf-8") == text, title


def test_architectures_take_few_lines(example: Path) -> None:
    lines = {p.name: p.read_text().count("\n") for p in example.glob("hotshoe_*/*.py")}
    assert len(lines) == 4
    assert {name: n for name, n in lines.items() if n > FEW} == {}


def test_the_package_installs_and_writes_transformers_tokens(
    example: Path, shared, tmp_path: Path
) -> None:
    """Slow, for it starts engines in a process of their own: only there the package is found."""
    shared.install(example, tmp_path)
    offered = json.loads(shared.ok("hotshoe", "plugins", "--json"))["offers"]["architectures"]
    assert set(offered) >= set(NAMES)
    out = shared.ok("pytest", "-q", str(example / "tests"), cwd=tmp_path)
    assert re.search(r"^\d+ passed", out, re.MULTILINE), out
