"""The hook specifications themselves."""

import inspect

from hotshoe.plugins import hookspecs


def test_every_hook_is_marked_prefixed_and_documented() -> None:
    hooks = {
        name: function
        for name, function in inspect.getmembers(hookspecs, inspect.isfunction)
        if function.__module__ == hookspecs.__name__
    }
    assert len(hooks) >= 6
    for name, function in hooks.items():
        assert name.startswith("hotshoe_")
        assert hasattr(function, "hotshoe_spec")
        assert inspect.getdoc(function).endswith(".")
