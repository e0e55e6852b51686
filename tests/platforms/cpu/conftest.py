"""A CPU device for each build of the kernels that this machine can run, and fresh randomness."""

import secrets
from dataclasses import replace

import pytest
import torch

import hotshoe_native
from hotshoe.platform import DeviceFacts
from hotshoe_cpu.native import FEATURE
from hotshoe_cpu.platform import CpuPlatform

USABLE = [status.isa for status in hotshoe_native.available() if status.usable]


@pytest.fixture(params=USABLE)
def facts(request: pytest.FixtureRequest) -> DeviceFacts:
    """Facts that choose one build of the kernels, on two threads."""
    hotshoe_native.load(request.param).set_threads(2)
    return replace(CpuPlatform().facts(), features=frozenset([FEATURE + request.param]))


@pytest.fixture
def rng() -> torch.Generator:
    """A generator with a new seed in each run; pytest shows the seed when the test fails."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)
