"""The files: what they are served with, and that they need nothing from anywhere else."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from hotshoe_ui.page import HEADERS, TYPES, public_files

STATIC = Path(str(files("hotshoe_ui"))) / "static"
FILES = sorted(STATIC.iterdir())
ROUTES = {file.path: file for file in public_files()}
MAX_BYTES = 60_000


def test_every_file_has_a_route() -> None:
    names = {file.name for file in FILES} - {"index.html"}
    assert ROUTES.keys() == {"/", *(f"/ui/{name}" for name in names)}


@pytest.mark.parametrize("path", ROUTES)
def test_answers(path: str) -> None:
    served = ROUTES[path]
    name = path.removeprefix("/ui/") if path != "/" else "index.html"
    assert served.body == (STATIC / name).read_bytes()
    assert served.headers["content-type"] == TYPES[Path(name).suffix]
    for header, value in HEADERS.items():
        assert served.headers[header] == value


def test_the_policy_lets_nothing_in_or_out() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert all(value in ("'self'", "'none'") for value in policy.values())


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_nothing_comes_from_elsewhere(file: Path) -> None:
    text = file.read_text()
    found = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text))
    assert found <= {"http://www.w3.org/2000/svg"}
    for bad in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert bad not in text
    for storage in ("localStorage", "sessionStorage", "indexedDB", "document.cookie"):
        assert storage not in text


def test_every_import_and_link_is_a_file_that_is_there() -> None:
    for file in FILES:
        for path in re.findall(r"[\"'](/ui/[\w.]+)[\"']", file.read_text()):
            assert path in ROUTES, (file.name, path)


def test_every_element_that_code_asks_for_is_in_the_page() -> None:
    page = (STATIC / "index.html").read_text()
    there = set(re.findall(r'id="([\w-]+)"', page))
    for file in STATIC.glob("*.js"):
        for name in re.findall(r'byId\("([\w-]+)"\)', file.read_text()):
            assert name in there, (file.name, name)


def test_no_styles_and_scripts_within_the_page() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", page)


def test_the_page_is_small() -> None:
    assert sum(file.stat().st_size for file in FILES) < MAX_BYTES
