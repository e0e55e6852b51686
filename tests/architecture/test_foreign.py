"""One guard runs foreign code; beside it, only ends of threads and processes catch everything."""

import ast

#: Where everything is caught and not raised again, and why.
ENDS = {
    "core/hotshoe/cli/main.py": "the command ends: an exit code instead of a traceback",
    "core/hotshoe/engine/api/ahead.py": "a fork ends: its owner is told",
    "core/hotshoe/engine/transport/child.py": "the engine process ends: its owner is told",
    "core/hotshoe/engine/core/engine_core.py": "the engine ends: every request is told",
    "core/hotshoe/engine/transport/loop.py": "the engine's thread ends: every front end is told",
    "core/hotshoe/grammar/compilation.py": "a thread compiles: whoever waits is told",
    "plugins/server/hotshoe_server/batch.py": "a group of tasks: its first error goes on",
    "plugins/server/hotshoe_server/extensions.py": "the server ends anyway: it is logged",
    "plugins/server/hotshoe_server/fleet.py": "a thread loads: whoever waits is told",
    "plugins/structured-output/hotshoe_structured_output/apart.py": "a thread: its caller is told",
}


def catches_all(handler: ast.ExceptHandler) -> bool:
    named = "" if handler.type is None else ast.unparse(handler.type)
    last = handler.body[-1]
    return "BaseException" in named and not (isinstance(last, ast.Raise) and last.exc is None)


def test_whoever_catches_everything_is_an_end_or_the_guard(sources) -> None:
    found = {
        source.path
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler) and catches_all(node)
    }
    assert found == set(ENDS)
