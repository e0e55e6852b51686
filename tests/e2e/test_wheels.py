"""Wheels of all distributions, made through their source archives, run together.

The clone is not used. Compiling takes minutes.
"""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: object, cwd: Path) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_wheels_generate_in_a_fresh_environment(tmp_path: Path) -> None:
    projects = [ROOT, *sorted(path.parent for path in ROOT.glob("*/pyproject.toml"))]
    projects += sorted(path.parent for path in ROOT.glob("p*/*/pyproject.toml"))
    for project in projects:
        build = ("-m", "build", "--no-isolation", "-o", tmp_path / "dist")
        run(sys.executable, *build, project, cwd=tmp_path)
    wheels = sorted((tmp_path / "dist").glob("*.whl"))
    assert len(wheels) == len(projects)

    # Third parties come from the environment of the tests; nothing of Hotshoe does.
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=False)
    python = fresh / "bin/python"
    target = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
    )
    install = ("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", target.strip())
    run(sys.executable, *install, *wheels, cwd=tmp_path)
    here = run(sys.executable, "-c", "import numpy; print(numpy.__path__[0])", cwd=tmp_path)
    third = Path(here.strip()).parent
    Path(target.strip(), "third_parties.pth").write_text(f"{third}\n")
    where = run(
        python, "-c", "import hotshoe, hotshoe_native; print(hotshoe.__file__)", cwd=tmp_path
    )
    assert where.startswith(str(fresh))
    words = ("generate", "demo", "-p", "The list", "--max-tokens", "4", "-q", "--platform", "cpu")
    text = run(python, "-m", "hotshoe.cli", *words, cwd=tmp_path)
    assert text.strip()
