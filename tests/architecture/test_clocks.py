"""A clock that somebody may set names moments for people, and decides nothing.

Deadlines, time limits, ages, durations and signs of life are counted by `time.monotonic`, or by
`time.perf_counter`, and in C++ by `std::chrono::steady_clock`.
tests/plugins/server/test_serving.py lets the clock of a whole server jump.
"""

import ast
import re
from pathlib import Path

import pytest

#: What asks the clock that may be set, or the file system, which asks it.
CALLS = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.asctime"),
    *("time.strftime", "time.mktime", "time.clock_gettime", "time.clock_gettime_ns"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "datetime.fromtimestamp"),
    *("date.today", "date.fromtimestamp", "path.getmtime", "path.getctime", "path.getatime"),
    *("utils.formatdate", "utils.localtime"),
}
FIELDS = re.compile(r"st_[amc]time(_ns)?|created|msecs|relativeCreated")
NATIVE = re.compile(
    r"system_clock|high_resolution_clock|CLOCK_REALTIME|gettimeofday|\btime\s*\(|timedwait|\butc_clock"
)
#: Modules that may, and what they do with it.
ALLOWED = {
    "core/hotshoe/cli/keeper/files.py": "whether a file has changed",
    "core/hotshoe/loader/checked.py": "whether a file has changed",
    "core/hotshoe/loader/kept.py": "which file was unused for longest",
    "core/hotshoe/runner/profiler.py": "the name of a file",
    "core/hotshoe/text/chat_template.py": "a template may write the date",
    "plugins/observability/hotshoe_observability/exposition.py": "when adapters were in use",
    "plugins/observability/hotshoe_observability/tracing.py": "when spans were, for a collector",
    "plugins/server/hotshoe_server/chat_stream.py": "`created` of an answer",
    "plugins/server/hotshoe_server/derender_stream.py": "`created` of a chunk",
    "plugins/server/hotshoe_server/endpoints/chat.py": "`created` of an answer",
    "plugins/server/hotshoe_server/endpoints/completions.py": "`created` of an answer",
    "plugins/server/hotshoe_server/endpoints/conversations.py": "`created_at` of a conversation",
    "plugins/server/hotshoe_server/endpoints/ollama.py": "`created_at` of an answer",
    "plugins/server/hotshoe_server/endpoints/classes.py": "`created` of an answer",
    "plugins/server/hotshoe_server/endpoints/ranking.py": "`created` of an answer",
    "plugins/server/hotshoe_server/endpoints/render.py": "`created` of an answer",
    "plugins/server/hotshoe_server/endpoints/responses.py": "`created_at` of a response",
    "plugins/server/hotshoe_server/logs.py": "when a line was written",
    "plugins/server/hotshoe_server/state.py": "`created` of a model",
}


def asks(tree: ast.Module) -> list[str]:
    """Return what in a module asks the clock that may be set, by its last two names."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            before = node.value.attr if isinstance(node.value, ast.Attribute) else None
            before = node.value.id if isinstance(node.value, ast.Name) else before
            if f"{before}.{node.attr}" in CALLS or (
                FIELDS.fullmatch(node.attr) and isinstance(node.ctx, ast.Load) and before != "self"
            ):
                found.append(f"{before}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"time.{a.name}" for a in node.names if f"time.{a.name}" in CALLS]
    return found


def test_the_clock_that_may_be_set_is_asked_for_people_alone(sources) -> None:
    assert {source.path for source in sources if asks(source.tree)} == set(ALLOWED)


def test_nothing_is_measured_with_it(root: Path) -> None:
    folders = ("benchmarks", "bridge", "examples", "tools")
    files = [p for f in folders for p in (root / f).rglob("*.py") if "build" not in p.parts]
    assert len(files) > 20
    assert [str(p) for p in files if asks(ast.parse(p.read_text(encoding="utf-8")))] == []


def test_native_code_does_not_ask_it(root: Path) -> None:
    files = [p for p in (root / "csrc").rglob("*") if p.suffix in (".cpp", ".h", ".hpp", ".c")]
    assert len(files) > 20
    assert [str(p) for p in files if NATIVE.search(p.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "code",
    [
        "limit = time.time() + 5",
        "time.time_ns",
        "from time import time",
        "datetime.datetime.now()",
        "datetime.now(UTC)",
        "os.path.getmtime(path)",
        "path.stat().st_mtime",
        "time.clock_gettime(time.CLOCK_REALTIME)",
        "record.created",
    ],
)
def test_it_is_found(code: str) -> None:
    assert asks(ast.parse(code))


@pytest.mark.parametrize("code", ["time.monotonic()", "time.perf_counter_ns()", "self.created"])
def test_others_are_left_alone(code: str) -> None:
    assert not asks(ast.parse(code))
