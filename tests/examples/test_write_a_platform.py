"""docs/how-to/write-a-platform.md, followed to the letter, ends with a platform that conforms."""

import re
import shlex
from pathlib import Path

import pytest

from hotshoe.cli.main import main
from hotshoe_conformance.new_platform import FILES, render

BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs/how-to/write-a-platform.md").read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, dict[str, str], str]]:
    """Return language, attributes and text of every block."""
    found = BLOCK.findall(page)
    return [(kind, dict(re.findall(r'(\w+)="([^"]*)"', more)), text) for kind, more, text in found]


def test_the_page_shows_the_template(page: str) -> None:
    template = render("toaster")
    shown = [(a["title"], text) for _, a, text in blocks(page) if set(a) == {"title"}]
    assert {title for title, _ in shown} >= {
        "hotshoe_toaster/plugin.py",
        "hotshoe_toaster/platform.py",
    }
    for title, text in shown:
        assert template.get(title, text) == text, title


def test_what_the_command_says_comes_next_is_on_the_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-platform", "toaster"]) == 0
    steps = [shlex.split(line) for line in capsys.readouterr().out.splitlines()[1:]]
    shown = [shlex.split(line.removeprefix("$ ")) for line in page.splitlines() if line[:2] == "$ "]
    assert steps[0] == ["pip", "install", "-e", "hotshoe-platform-toaster[test]"]
    assert all(step in shown for step in steps)


def test_every_template_is_used() -> None:
    import hotshoe_conformance

    folder = Path(hotshoe_conformance.__file__).parent / "template"
    assert {path.name for path in folder.iterdir()} == set(FILES.values())
    for text in render("toaster").values():
        assert not re.search(r"@[A-Z_]+@", text)


def test_a_platform_takes_few_lines() -> None:
    template = render("toaster")
    lines = [template[f"hotshoe_toaster/{name}.py"].count("\n") for name in ("plugin", "platform")]
    assert sum(lines) <= 60


@pytest.mark.slow
def test_the_page_leads_to_a_platform_that_conforms(page, installation, tmp_path: Path) -> None:
    package = tmp_path / "hotshoe-platform-toaster"
    outputs = []
    for kind, attributes, text in blocks(page):
        if kind == "console":
            lines = [line.removeprefix("$ ") for line in text.splitlines()]
            outputs += [installation.ok(*shlex.split(line), cwd=tmp_path) for line in lines]
        elif "replaces" in attributes:
            replace_method(package / attributes["title"], attributes["replaces"], text)
        elif "title" in attributes:
            (package / attributes["title"]).write_text(text)
    assert "gated_activation" in outputs[-2]
    assert "conforms" in outputs[-2]
    assert re.search(r"gated_activation .*toaster", outputs[-3])


def replace_method(path: Path, name: str, text: str) -> None:
    """Put a method in the place of the one of the same name, and import what it needs."""
    source = path.read_text()
    source, count = re.subn(
        rf"    def {name}\(.*?(?=\n\n    def |\Z)", text.rstrip(), source, flags=re.DOTALL
    )
    assert count == 1
    path.write_text(source.replace("import norm\n", "import activation, norm\n"))


@pytest.mark.parametrize("name", ["Toaster", "9lives", "a-b", "", "x" * 40])
def test_names_that_cannot_be(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-platform", name]) == 2
    assert "cannot name a platform" in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("here")
    assert main(["new-platform", "toaster", "--dir", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
