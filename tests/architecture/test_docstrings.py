"""Every module says what it is for, and every seam says what it takes."""

import ast
from pathlib import Path

import pytest

# Modules whose public functions and classes are seams between rooms.
SEAMS = (
    "core/hotshoe/engine/api/llm.py",
    "core/hotshoe/executor/worker.py",
    "core/hotshoe/kv/",
    "core/hotshoe/models/base.py",
    "core/hotshoe/platform.py",
    "core/hotshoe/plugins/",
    "core/hotshoe/scheduler/",
    "core/hotshoe/slots/",
)


def public(tree: ast.Module) -> list[ast.AST]:
    """Return the public classes and functions of a module, and the public methods of these."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    top = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    methods = [
        member
        for node in top
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, kinds) and not member.name.startswith("_")
    ]
    return [*top, *methods]


def test_every_module_opens_with_its_job(sources) -> None:
    missing = [s.path for s in sources if not (ast.get_docstring(s.tree) or "").strip()]
    assert missing == []


def test_every_test_module_says_what_it_shows(root: Path) -> None:
    paths = sorted((root / "tests").rglob("*.py"))
    assert paths
    missing = [str(p) for p in paths if not ast.get_docstring(ast.parse(p.read_text()))]
    assert missing == []


@pytest.mark.parametrize("seam", SEAMS)
def test_seams_are_documented(sources, seam: str) -> None:
    files = [s for s in sources if s.path.startswith(seam) and "/reference/" not in s.path]
    assert files
    missing = [
        f"{source.path}:{node.lineno} {node.name}"
        for source in files
        for node in public(source.tree)
        if ast.get_docstring(node) is None and not is_trivial(node)
    ]
    assert missing == []


def is_trivial(node: ast.AST) -> bool:
    """A property or one-line method: its name says it."""
    return isinstance(node, ast.FunctionDef) and len(node.body) == 1


def test_raised_user_errors_are_announced(sources) -> None:
    """A public function whose own body raises a user error has a Raises section."""
    missing = []
    for source in sources:
        if not source.path.startswith("core/"):
            continue
        for node in public(source.tree):
            if isinstance(node, ast.ClassDef) or not raises_user_error(node):
                continue
            if "Raises:" not in (ast.get_docstring(node) or ""):
                missing.append(f"{source.path}:{node.lineno} {node.name}")
    assert missing == []


def raises_user_error(function: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and getattr(node.exc.func, "id", "").endswith("Error")
        and node.exc.func.id not in ("AssertionError", "NotImplementedError")
        for node in ast.walk(function)
    )
