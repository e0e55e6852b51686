"""Who may import whom: the written contracts, and the budgets of scheduler and platforms."""

import ast
import configparser
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

STANDARD = sys.stdlib_module_names
# Import name -> distribution, where they differ. PyTorch's builds for GPUs bring Triton along,
# under another name for each vendor.
DISTRIBUTIONS = {
    "opentelemetry": "opentelemetry-sdk",
    "pynvml": "nvidia-ml-py",
    "triton": "torch",
    "yaml": "pyyaml",
}
#: A library of kernels for the platforms beside it, which offers no platform itself.
SHARED_KERNELS = {"hotshoe_triton"}


def projects(root: Path) -> list[Path]:
    """Folders of the pure-Python distributions."""
    return sorted(
        p.parent
        for pattern in ("core", "platforms/*", "plugins/*")
        for p in root.glob(f"{pattern}/pyproject.toml")
    )


def package(project: Path) -> Path:
    [init] = project.glob("*/__init__.py")
    return init.parent


def imported(tree: ast.AST) -> set[str]:
    """Return the full names of all modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module)
    return names


#: Libraries whose new versions have broken their callers, and the first one that is not tried.
BOUNDS = {
    "aiohttp": "4",
    "huggingface-hub": "2",
    "llguidance": "2",
    "numpy": "3",
    "pydantic": "3",
    "pydantic-core": "3",
    "starlette": "2",
    "tokenizers": "1",
    "transformers": "6",
    "xgrammar": "0.3",
}


def test_the_contracts_hold(root: Path) -> None:
    # In a process of its own: it turns off all loggers of the one that it runs in.
    code = "import sys, importlinter.cli as cli; sys.exit(cli.lint_imports(no_cache=True))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_distribution_is_under_contract(root: Path) -> None:
    config = configparser.ConfigParser()
    config.read(root / ".importlinter")
    packages = {package(project).name for project in projects(root)}
    assert set(config["importlinter"]["root_packages"].split()) == packages
    others = packages - {"hotshoe"} | {"hotshoe_native"}
    outwards = config["importlinter:contract:outwards"]["forbidden_modules"].split()
    assert set(outwards) >= others
    plugins = {package(p).name for p in projects(root) if p.parent.name == "plugins"}
    assert set(config["importlinter:contract:plugins"]["source_modules"].split()) == plugins


def test_the_scheduler_stands_alone(graph) -> None:
    found = {
        "hotshoe.scheduler",
        *graph.find_upstream_modules("hotshoe.scheduler", as_package=True),
    }
    found |= graph.find_descendants("hotshoe.scheduler")
    modules = {m for m in found if m != "hotshoe" and not is_package_front(m)}
    assert len(modules) <= 20, sorted(modules)
    lines = sum(Path(source_of(m)).read_text().count("\n") for m in modules)
    assert lines <= 2850
    assert loaded_after("import hotshoe.scheduler") <= set(STANDARD) | {"hotshoe"}


def source_of(module: str) -> str:
    import importlib.util

    return importlib.util.find_spec(module).origin


def is_package_front(module: str) -> bool:
    """An __init__.py that only gathers names."""
    return source_of(module).endswith("__init__.py")


def loaded_after(statement: str) -> set[str]:
    """Return the top-level names in sys.modules after a statement, in a fresh interpreter."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "module", ["hotshoe", "hotshoe.errors", "hotshoe.types", "hotshoe.config", "hotshoe.kv"]
)
def test_light_modules_load_the_standard_library_alone(module: str) -> None:
    assert loaded_after(f"import {module}") <= set(STANDARD) | {"hotshoe"}


def test_the_package_loads_its_names_when_used() -> None:
    assert "torch" not in loaded_after("from hotshoe import EngineConfig, SamplingParams")


def test_every_public_name_exists() -> None:
    import hotshoe

    for name in hotshoe.__all__:
        assert getattr(hotshoe, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hotshoe.nothing


def test_a_platform_knows_few_rooms_of_core(root: Path, sources) -> None:
    platforms = [p for p in projects(root) if p.parent.name == "platforms"]
    for project in platforms:
        prefix = str(project.relative_to(root)) + "/"
        names = {n for s in sources if s.path.startswith(prefix) for n in imported(s.tree)}
        core = {name for name in names if name.partition(".")[0] == "hotshoe"}
        assert len(core) <= 8, sorted(core)  # one of them starts every child process of ours
        foreign = {n.partition(".")[0] for n in names} & {package(p).name for p in platforms}
        assert foreign <= {package(project).name} | SHARED_KERNELS


def test_distributions_declare_what_they_import(root: Path, sources) -> None:
    for project in projects(root):
        prefix = str(project.relative_to(root)) + "/"
        names = {
            n.partition(".")[0]
            for s in sources
            if s.path.startswith(prefix)
            for n in imported(s.tree)
        }
        used = {n for n in names if n not in STANDARD and n != package(project).name}
        table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
        declared = {requirement(line) for line in table.get("dependencies", [])}
        optional = {
            requirement(r)
            for group in table.get("optional-dependencies", {}).values()
            for r in group
        }
        wanted = {DISTRIBUTIONS.get(n, n).replace("_", "-") for n in used}
        wanted = {"hotshoe-platform-cpu" if n == "hotshoe-cpu" else n for n in wanted}
        assert wanted <= declared | optional, (project.name, wanted - declared - optional)
        third_party = {name for name in declared if not name.startswith("hotshoe")}
        assert third_party <= wanted, (project.name, third_party - wanted)


def test_libraries_that_have_broken_their_callers_have_a_bound(root: Path) -> None:
    met = set()
    for project in projects(root):
        table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
        extras = [r for group in table.get("optional-dependencies", {}).values() for r in group]
        for line in [*table.get("dependencies", []), *extras]:
            bound = BOUNDS.get(requirement(line))
            assert bound is None or line.endswith(f",<{bound}"), (project.name, line)
            met |= {requirement(line)} & BOUNDS.keys()
    assert met == BOUNDS.keys()


def requirement(line: str) -> str:
    for mark in "[<>=!~; ":
        line = line.partition(mark)[0]
    return line


def test_all_distributions_have_one_version(root: Path) -> None:
    import hotshoe

    for path in [root / "pyproject.toml", *(p / "pyproject.toml" for p in projects(root))]:
        table = tomllib.loads(path.read_text())["project"]
        assert table["version"] == hotshoe.__version__, path
        extras = [r for group in table.get("optional-dependencies", {}).values() for r in group]
        for line in [*table.get("dependencies", []), *extras]:
            if line.startswith("hotshoe"):
                assert line.endswith(f"=={hotshoe.__version__}"), (path, line)
