"""An installation of its own for packages from outside: it sees the tests' environment, and what
is installed into it is seen by nobody else."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: pytest's plugin of the conformance kit, which an installation without autoload has to name.
KIT = "hotshoe_conformance.pytest_plugin"


class Installation:
    """A virtual environment on top of the one that runs the tests."""

    def __init__(self, path: Path) -> None:
        venv.create(path, with_pip=False)
        self.python = path / "bin/python"
        [self.site] = path.glob("lib/python*/site-packages")
        outer = sysconfig.get_paths()["purelib"]
        (self.site / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n")

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `hotshoe`, `pip`, `pytest` or `python` there."""
        python = str(self.python)
        program = {
            "hotshoe": [python, "-m", "hotshoe.cli"],
            "pip": [sys.executable, "-m", "pip", "--python", python],
            # Rewriting the plain asserts of all plugins takes longer than the tests.
            "pytest": [python, "-m", "pytest", "--assert=plain", "-pno:cacheprovider", f"-p{KIT}"],
            "python": [python],
        }[words[0]]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}  # noqa: TID251
        environment |= {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_QUIET": "1"}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing them takes long, too
        # Spelt so, pip turns build isolation off.
        environment["PIP_NO_BUILD_ISOLATION"] = "0"
        return subprocess.run(
            [*program, *words[1:]],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def ok(self, *words: str, cwd: Path | None = None) -> str:
        """Run something that has to succeed and return what it printed."""
        done = self.run(*words, cwd=cwd)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def install(self, source: Path, scratch: Path) -> None:
        """Install a package, built in a copy so that its folder stays as it is."""
        copy = scratch / source.name
        ignore = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        shutil.copytree(source, copy, ignore=ignore)
        self.ok("pip", "install", str(copy))


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """An empty installation."""
    return Installation(tmp_path / "environment")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation for all tests of a module."""
    return Installation(tmp_path_factory.mktemp("shared") / "environment")


@pytest.fixture(scope="module")
def root() -> Path:
    """The project."""
    return ROOT
