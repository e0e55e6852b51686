"""Imports what engines of a model do, for a process that others are forked from.

To explain a model is to build its layers, which choose their operations and so import them, on the
device that has no memory. That happens in a fork: it asks drivers what is here, and computes, and
each may leave threads.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

from hotshoe.config import EngineConfig
from hotshoe.engine.explain.explanation import explain, named_platform
from hotshoe.errors import EngineError, UserError
from hotshoe.foreign import ending
from hotshoe.platform import Preparing
from hotshoe.plugins import PluginManager


def import_model(config: EngineConfig, plugins: PluginManager) -> str:
    """Import what engines of a model need, and return the device that they would take.

    Raises:
        UserError: They could not be built with the defaults of all options.
        EngineError: The fork ended while it looked.
    """

    def look() -> tuple[str, str, list[str]]:
        before = set(sys.modules)
        found = explain(config, plugins)
        imported = [name for name in sys.modules if name not in before]
        return found.facts.device, found.config.platform, imported

    device, platform, modules = _tried(look)
    for name in modules:
        with suppress(Exception):  # some are made, not imported
            import_module(name)
    chosen = named_platform(replace(config, platform=platform), plugins)
    if isinstance(chosen, Preparing):
        chosen.prepare()
    return str(device)


def _tried(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a fork, as JSON has it.

    Raises:
        UserError: It raised one.
        EngineError: The fork ended.
    """
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.close(reading)
            try:
                answer = {"found": function()}
            except UserError as error:
                answer = {"error": str(error)}
            os.write(writing, json.dumps(answer).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:  # noqa: PTH123 - a descriptor
        text = file.read()
    _, status = os.waitpid(child, 0)
    if not text:
        how = ending(os.waitstatus_to_exitcode(status))
        raise EngineError(f"a process that looked at the model has ended ({how})")
    answer = json.loads(text)
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["found"]
