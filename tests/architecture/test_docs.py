"""What the pages name is there: commands, flags, make targets, scripts, names in Python, links."""

import ast
import configparser
import importlib
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hotshoe_server.errors import CATALOG
from hotshoe_server.vllm_flags import FLAGS as VLLM_FLAGS

BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FLAG = re.compile(r"`(--[a-z][a-z0-9-]*)")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
#: A row of a table of endpoints: method and path.
ENDPOINT = re.compile(r"""\(\s*"(?:GET|POST|DELETE)",\s*"(/[^"]*)\"""")
OURS = ("hotshoe.", "hotshoe_conformance.", "hotshoe_server.")
#: Flags of other programs.
FOREIGN = {"--conformance-full", "--conformance-seed", "--device"}


@pytest.fixture(scope="module")
def pages(root: Path) -> dict[Path, str]:
    paths = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    return {path: path.read_text(encoding="utf-8") for path in sorted(paths)}


def blocks(text: str, *languages: str) -> list[str]:
    return [body for language, body in BLOCK.findall(text) if language in languages]


def shell_lines(pages: dict[Path, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the page and the words of every line that a reader is told to type."""
    for path, text in pages.items():
        for block in blocks(text, "console"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    words = shlex.split(line[2:], comments=True)
                    yield f"{path.name}: {line}", [word for word in words if word != "..."]


def test_every_command_line_is_understood(pages, commands) -> None:
    count = 0
    for place, words in shell_lines(pages):
        if words[:1] != ["hotshoe"]:
            continue
        name = next((n for n in (" ".join(words[1:3]), words[1]) if n in commands), None)
        assert name is not None, place
        commands[name].parse(words[1 + len(name.split()) :])
        count += 1
    assert count > 50


def test_every_flag_exists(pages, commands) -> None:
    known = {flag for parser in commands.values() for flag in parser._option_string_actions}
    known |= {"--traceback", "--version"}  # before any command's own
    named = {(path.name, flag) for path, text in pages.items() for flag in FLAG.findall(text)}
    foreign = {flag.name.partition(".")[0] for flag in VLLM_FLAGS}  # which are another program's
    named -= {("from-vllm.md", flag) for flag in foreign | {"--flag"}}
    assert len(named) > 100
    assert [(page, flag) for page, flag in sorted(named) if flag not in known | FOREIGN] == []


def test_every_target_and_script_exists(root: Path, pages) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    lines = list(shell_lines(pages))
    used = {words[1] for _, words in lines if words[0] == "make"}
    used |= {name for text in pages.values() for name in re.findall(r"`make ([a-z-]+)", text)}
    assert used >= {"check", "demo", "test"}
    assert used <= targets
    scripts = {word for _, words in lines if words[0] == "python" for word in words[1:2]}
    assert [word for word in scripts if word.endswith(".py") and not (root / word).exists()] == []


def test_names_in_python_exist(pages) -> None:
    count = 0
    for path, text in pages.items():
        for block in blocks(text, "python"):
            for node in ast.walk(ast.parse(textwrap.dedent(block))):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith(OURS):
                    module = importlib.import_module(str(node.module))
                    missing = [a.name for a in node.names if not hasattr(module, a.name)]
                    assert missing == [], (path.name, node.module)
                    count += 1
    assert count > 10


def test_options_in_yaml_exist(pages, commands) -> None:
    known = {action.dest for action in commands["serve"]._actions}
    named = set()
    for text in pages.values():
        for block in blocks(text, "yaml"):
            values = yaml.safe_load(block)
            if "model" in values:
                named |= set(values)
    assert named
    assert named <= known


def test_every_endpoint_is_on_the_page(root: Path, pages) -> None:
    page = pages[root / "docs/reference/http-api.md"]
    sources = [path.read_text() for path in (root / "plugins").rglob("hotshoe_*/**/*.py")]
    routes = {path for source in sources for path in ENDPOINT.findall(source)}
    assert routes >= {"/v1/completions", "/live", "/metrics"}
    named = {path.rsplit("/{")[0] for path in routes}
    assert [path for path in sorted(named) if f"`{path}" not in page] == []


def test_every_code_of_errors_is_on_the_page(root: Path, pages) -> None:
    rows = rows_below(pages[root / "docs/reference/http-api.md"], "Errors")
    cells = [row.strip("| ").split(" | ") for row in rows]
    named = {
        code: statuses for statuses, codes in cells for code in re.findall("`([a-z_]+)`", codes)
    }
    assert named.keys() == CATALOG.keys()
    assert [code for code, kind in CATALOG.items() if str(kind.status) not in named[code]] == []


def test_bodies_of_requests_say_their_type(pages) -> None:
    asked = [(place, words) for place, words in shell_lines(pages) if words[:1] == ["curl"]]
    sent = [(place, words) for place, words in asked if "-d" in words]
    assert len(sent) > 5
    assert [place for place, words in sent if "content-type: application/json" not in words] == []


def test_the_rooms_of_core_are_drawn_as_they_are(root: Path, pages) -> None:
    contracts = configparser.ConfigParser()
    contracts.read(root / ".importlinter")
    layers = contracts["importlinter:contract:core"]["layers"].split("\n")
    [drawn] = [b for b in blocks(pages[root / "ARCHITECTURE.md"], "text") if "builtin" in b]
    assert drawn.split("\n")[:-1] == layers[1:]


def test_every_page_is_in_the_navigation(root: Path, pages) -> None:
    nav = re.findall(r"[\w/-]+\.md", (root / "mkdocs.yml").read_text())
    names = {str(p.relative_to(root / "docs")) for p in pages if root / "docs" in p.parents}
    assert sorted(nav) == sorted(names)
    index = pages[root / "docs/decisions/index.md"]
    assert [n for n in names if re.match(r"decisions/\d", n) and Path(n).name not in index] == []


def test_links_lead_somewhere(root: Path, pages) -> None:
    broken = []
    for path, text in pages.items():
        for target, anchor in LINK.findall(BLOCK.sub("", text)):
            if "://" in target:
                continue
            place = (path.parent / target).resolve() if target else path
            if not place.exists() or (anchor and anchor not in anchors(place)):
                broken.append((path.name, target, anchor))
    assert broken == []


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows_below(text: str, heading: str) -> list[str]:
    """Return the rows of the table below a heading."""
    part = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in part.splitlines() if line.startswith("| ")][1:]


def test_the_tests_of_the_threat_model_exist(root: Path, pages: dict[Path, str]) -> None:
    text = pages[root / "docs/explanation/threat-model.md"]
    sources = [path.read_text() for path in (root / "tests").rglob("test_*.py")]
    defined = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    attacks = rows_below(text, "Attacks that others have published")
    promises = rows_below(text, "Eight promises")
    assert (len(attacks), len(promises)) == (14, 8)
    for row in attacks + promises:
        last = row.strip("| ").rpartition(" | ")[2]
        names = re.findall(r"`(test_\w+)`", last)
        places = re.findall(r"`(tests/[\w/.]+)`", last)
        assert names or places, row
        assert [name for name in names if name not in defined] == [], row
        assert [place for place in places if not (root / place).exists()] == [], row
