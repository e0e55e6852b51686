"""Fixtures of the kernels' tests: every build that this machine can run, fresh randomness."""

import fcntl
import importlib.util
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import hotshoe_native

ROOT = Path(__file__).parents[2]
USABLE = [status.isa for status in hotshoe_native.available() if status.usable]
EMULATED = "amx_emulated"


@pytest.fixture(params=USABLE)
def native(request: pytest.FixtureRequest) -> ModuleType:
    """The kernels of one build, on two threads."""
    module = hotshoe_native.load(request.param)
    module.set_threads(2)
    return module


@pytest.fixture(params=[*USABLE, *({EMULATED} - {*USABLE})])
def native_or_emulated(request: pytest.FixtureRequest) -> ModuleType:
    """As `native`, and AMX tiles emulated: for kernels that use them."""
    known = request.param in USABLE
    module = hotshoe_native.load(request.param) if known else request.getfixturevalue("emulated")
    module.set_threads(2)
    return module


@pytest.fixture(scope="session")
def emulated() -> ModuleType:
    """The kernels that use tiles, with emulated ones, built (again) from the sources."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    folder = ROOT / "build" / EMULATED
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "setup.py", "-q", "build_ext", f"--isa={EMULATED}"]
    command += [f"--build-lib={folder}", f"--build-temp={folder}"]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test processes share the folder
        subprocess.run(command, cwd=ROOT, check=True)
    (built,) = (folder / "hotshoe_native").glob(f"_{EMULATED}.*")
    spec = importlib.util.spec_from_file_location(f"hotshoe_native._{EMULATED}", built)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rng() -> torch.Generator:
    """A generator with a new seed in each run; pytest shows the seed when the test fails."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)
