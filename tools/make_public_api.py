"""Write tests/architecture/public_api.txt: every name that a package from outside may import.

`make reference` runs it; a test fails when the file is not what it would write, so that a change is
read in a diff. The modules are those that docs/explanation/compatibility.md lists.
"""

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests/architecture/public_api.txt"
PAGE = ROOT / "docs/explanation/compatibility.md"
#: Slots have pages and a surface of their own, which list fields and call signatures.
NAMES_ALONE = ("hotshoe.slots",)


def modules() -> list[str]:
    """Return the public modules, as the page lists them."""
    [table] = re.findall(r"## Public modules\n(.*?)\n## ", PAGE.read_text("utf-8"), re.DOTALL)
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def text() -> str:
    """Return the file."""
    lines = ["# What packages from outside may import. A change here is a change for them."]
    for name in modules():
        lines += ["", f"[{name}]", *_module(importlib.import_module(name))]
    return "\n".join(lines) + "\n"


def _module(module: ModuleType) -> Iterator[str]:
    for name in sorted(_public(module)):
        value = getattr(module, name)
        if module.__name__ in NAMES_ALONE:
            yield name
        elif inspect.isclass(value):
            yield from _class(name, value)
        elif callable(value) and hasattr(value, "__name__"):
            yield f"{name}{_signature(value)}"
        else:
            yield name


def _public(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", module.__name__) == module.__name__
        and name not in ("annotations", "TYPE_CHECKING")
    ]


def _class(name: str, value: type) -> Iterator[str]:
    yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            optional = field.default is not dataclasses.MISSING
            optional = optional or field.default_factory is not dataclasses.MISSING
            yield f"    {field.name}{' (optional)' if optional else ''}"
    listed = modules()
    members: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        own = base.__module__.partition(".")[0] == "hotshoe" and base.__module__ not in listed
        members |= vars(base) if base is value or own else {}
    for member, function in sorted(members.items()):
        if member.startswith("_") or not inspect.isfunction(function):
            continue
        yield f"    {member}{_signature(function)}"


def _signature(function: Any) -> str:
    """Return the parameters' names, and which of them may be left out."""
    words = []
    for parameter in inspect.signature(function).parameters.values():
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        optional = "" if parameter.default is parameter.empty else "=..."
        words.append(f"{mark}{parameter.name}{optional}")
    return f"({', '.join(words)})"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
