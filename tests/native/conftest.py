"""Fixtures of the kernels' tests: every build that this machine can run, fresh randomness."""

import secrets
from types import ModuleType

import pytest
import torch

import hotshoe_native

USABLE = [status.isa for status in hotshoe_native.available() if status.usable]


@pytest.fixture(params=USABLE)
def native(request: pytest.FixtureRequest) -> ModuleType:
    """The kernels of one instruction set, on two threads."""
    module = hotshoe_native.load(request.param)
    module.set_threads(2)
    return module


@pytest.fixture
def rng() -> torch.Generator:
    """A generator with a new seed in each run; pytest shows the seed when the test fails."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)
