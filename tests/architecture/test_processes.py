"""One module has child processes; the page about them has its time limits."""

import ast
from dataclasses import fields
from pathlib import Path

from hotshoe.engine.wire.children import ENGINE, RANKS
from hotshoe_conformance.ranks import TIMES as KIT
from hotshoe_server.supervisor import TIMES as API

MODULES = {"multiprocessing", "subprocess"}
#: Where processes are started, and why.
STARTS = {
    "core/hotshoe/engine/wire/children.py": "every process of ours",
    "core/hotshoe/cli/bench/startup.py": "a command is measured up to its first line",
    "core/hotshoe/cli/doctor.py": "a command is run for its output",
    "core/hotshoe/plugins/survey.py": "a plugin may end the process that imports it",
    "platforms/triton/hotshoe_triton/matrix.py": "tools are run for their output",
    "platforms/triton/hotshoe_triton/pool.py": "a process of a pool asks for its parent",
    "platforms/triton/hotshoe_triton/tune.py": "a pool compiles kernels",
}
#: Where this process is forked, and why.
FORKS = {
    "core/hotshoe/cli/keeper/forking.py": "a keeper's commands",
    "core/hotshoe/engine/api/ahead.py": "to try out what leaves threads",
    "core/hotshoe/engine/wire/spares.py": "a child that is wanted later",
    "core/hotshoe/runner/forkable.py": "to see which threads stay",
}


def test_processes_are_started_in_one_module(sources) -> None:
    found = {
        source.path
        for source in sources
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.Import) and MODULES & {alias.name for alias in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module in MODULES)
    }
    assert found == set(STARTS)


def test_forks_are_made_in_few_modules(sources) -> None:
    found = {
        source.path
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.fork", "os.forkpty"}
    }
    assert found == set(FORKS)


def test_processes_of_pools_end_with_who_made_them(sources) -> None:
    pools = [
        {arg.id for arg in node.args if isinstance(arg, ast.Name)}
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ProcessPoolExecutor"
    ]
    assert pools and all("end_with_parent" in names for names in pools)


def test_the_page_has_their_time_limits(root: Path) -> None:
    page = (root / "docs/explanation/engine.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    told = {row[0].partition("`:")[0].strip("`"): row[1:] for row in rows if "`:" in row[0]}
    for field in fields(ENGINE):
        for times, text in zip((ENGINE, RANKS, API, KIT), told[field.name], strict=True):
            value = getattr(times, field.name)
            assert text == "–" or text.startswith((f"{value:g}", "`")), (field.name, text, value)
            assert value or not text[0].isdigit(), (field.name, text)
