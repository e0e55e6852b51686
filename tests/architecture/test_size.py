"""Budgets of size: files, functions, parameters, contracts, and what a null platform takes."""

import ast
import statistics
from pathlib import Path

FILE_MEDIAN, FILE_P90, FILE_MAX = 120, 300, 500
FUNCTION_P90, FUNCTION_MAX = 25, 60
PARAMETERS_MAX = 7
#: Files of functions that take more: `Matrix` says how a checkpoint's matrix is laid out and cut.
LONG_SIGNATURES = {"core/hotshoe/layers/matrix.py": 8}
METHODS_MAX = 10
NULL_PLATFORM_LINES = 60
CONFIG_FIELDS_MAX = 120


def percentile_90(values: list[int]) -> int:
    return sorted(values)[int(0.9 * (len(values) - 1))]


def functions(sources) -> dict[str, ast.FunctionDef]:
    return {
        f"{source.path}:{node.lineno} {node.name}": node
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def test_files(sources) -> None:
    lines = {source.path: source.text.count("\n") for source in sources}
    assert {path: n for path, n in lines.items() if n > FILE_MAX} == {}
    assert percentile_90(list(lines.values())) <= FILE_P90
    assert statistics.median(lines.values()) <= FILE_MEDIAN


def test_kernel_sources(root: Path) -> None:
    paths = [p for p in (root / "csrc").rglob("*") if p.suffix in (".cpp", ".h", ".cu", ".cuh")]
    lines = {str(p.relative_to(root)): p.read_text().count("\n") for p in paths}
    assert lines
    assert {path: n for path, n in lines.items() if n > FILE_MAX} == {}


def test_functions(sources) -> None:
    lines = {name: f.end_lineno - f.lineno + 1 for name, f in functions(sources).items()}
    assert {name: n for name, n in lines.items() if n > FUNCTION_MAX} == {}
    assert percentile_90(list(lines.values())) <= FUNCTION_P90


def test_parameters(sources) -> None:
    counts = {}
    for name, function in functions(sources).items():
        if is_kernel(function):
            continue
        spec = function.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
        counts[name] = len([n for n in names if n not in ("self", "cls")])
    over = {name: count for name, count in counts.items() if count > PARAMETERS_MAX}
    assert {name.partition(":")[0]: count for name, count in over.items()} == LONG_SIGNATURES, over


def is_kernel(function: ast.FunctionDef) -> bool:
    """Code for a device takes its operands one by one: it has no records to put them in."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(text.partition("(")[0] in ("triton.jit", "gluon.jit") for text in decorators)


def test_contracts_are_small(sources) -> None:
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and is_contract(node):
                kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
                methods = [n.name for n in node.body if isinstance(n, kinds)]
                assert len(methods) <= METHODS_MAX, (source.path, node.name, methods)


def is_contract(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id in ("ABC", "Protocol") for base in node.bases)


def test_a_null_platform_is_short(root: Path) -> None:
    text = (root / "core/hotshoe/builtin/null.py").read_text()
    assert text.count("\n") <= NULL_PLATFORM_LINES


def test_the_configuration_stays_small() -> None:
    from dataclasses import fields

    from hotshoe.config import EngineConfig

    assert len(fields(EngineConfig)) <= CONFIG_FIELDS_MAX


def test_documents_stay_short(root: Path) -> None:
    assert (root / "README.md").read_text().count("\n") <= 120
    assert (root / "ARCHITECTURE.md").read_text().count("\n") <= 200
    page = root / "docs/explanation/performance.md"  # three screens; the rest is in the notes
    assert page.read_text().count("\n") <= 140
