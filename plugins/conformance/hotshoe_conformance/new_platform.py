"""`hotshoe new-platform NAME`: writes a package that works, to be changed from there.

The files are templates beside this module; nothing else is decided here.
"""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

from hotshoe import __version__
from hotshoe.errors import ConfigError
from hotshoe.plugins import HOOK_API

#: Path in the package -> template.
FILES = {
    "pyproject.toml": "pyproject.toml.in",
    "README.md": "README.md.in",
    "hotshoe_@NAME@/__init__.py": "init.py.in",
    "hotshoe_@NAME@/plugin.py": "plugin.py.in",
    "hotshoe_@NAME@/platform.py": "platform.py.in",
    "hotshoe_@NAME@/norm.py": "norm.py.in",
    "tests/test_conformance.py": "test_conformance.py.in",
    ".github/workflows/ci.yml": "ci.yml.in",
}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


class NewPlatform:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="name of the platform, such as toaster")
        parser.add_argument(
            "--dir", metavar="DIR", help="where to write; default: hotshoe-platform-NAME"
        )

    def run(self, args: Namespace) -> int:
        path = write(args.name, Path(args.dir or f"hotshoe-platform-{args.name}"))
        install = shlex.quote(f"{path}[test]")
        print(
            f"wrote {path}; next:\n  pip install -e {install}\n  hotshoe platforms\n"
            f"  pytest {shlex.quote(str(path))}"
        )
        return 0


def write(name: str, path: Path) -> Path:
    """Write the package into a new directory.

    Raises:
        ConfigError: The name is none or taken, something is there already, or it cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a platform: lower-case letters, digits and underscores, "
            "with a letter first"
        )
    for taken in (f"hotshoe-platform-{name}", f"hotshoe-{name}"):
        with suppress(PackageNotFoundError):
            distribution(taken)
            raise ConfigError(f"{taken} is installed already; choose another name")
    try:
        if path.exists() and any(path.iterdir()):
            raise ConfigError(f"{path} exists and is not empty; name another one with --dir")
        for place, text in render(name).items():
            target = path / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; name another one with --dir"
        ) from None
    return path


def render(name: str) -> dict[str, str]:
    """Return the files of a package by their path in it."""
    major, minor, *_ = __version__.split(".")
    title = name.replace("_", " ").title()
    values = {
        "@NAME@": name,
        "@CLASS@": title.replace(" ", ""),
        "@TITLE@": title,
        "@VERSION@": f"{major}.{minor}",
        "@LIMIT@": f"{major}.{int(minor) + 2}",
        "@HOOK_API@": str(HOOK_API),
    }
    templates = files("hotshoe_conformance") / "template"
    return {
        _fill(place, values): _fill((templates / source).read_text(encoding="utf-8"), values)
        for place, source in FILES.items()
    }


def _fill(text: str, values: dict[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
