"""A management library that says what a test wants, and the GPU where there is one."""

from __future__ import annotations

import secrets
import sys
import types
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionSpec, Candidate, accept
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import Case, Setup
from hotshoe_conformance.judge import judge
from hotshoe_cuda.candidates import offered
from hotshoe_triton import packages


@dataclass(frozen=True)
class Part:
    """What NVML says of a real part, or of an instance of one, whose multiprocessors it tells.

    Attributes:
        memory_bytes: 0 where it shares the machine's.
        places: What it is divided into, None where nothing is; without any, it is whole.
    """

    name: str
    uuid: str
    capability: tuple[int, int]
    memory_bytes: int
    cores: int
    places: tuple[Part | None, ...] = ()


H200 = Part("NVIDIA H200", "GPU-8f1b", (9, 0), 143_771 << 20, 16_896)
A100 = Part("NVIDIA A100-SXM4-80GB", "GPU-11aa", (8, 0), 81_920 << 20, 6_912)
#: Two instances of an H200, and the H200, an instance of which was taken away.
SMALL = Part("NVIDIA H200 MIG 1g.18gb", "MIG-3a0c", (9, 0), 16_384 << 20, 16)
LARGE = Part("NVIDIA H200 MIG 3g.71gb", "MIG-b77e", (9, 0), 70_656 << 20, 60)
DIVIDED = replace(H200, uuid="GPU-d1d1", places=(SMALL, None, LARGE))
T4 = Part("Tesla T4", "GPU-77c0", (7, 5), 15_360 << 20, 2_560)


class FakeNvml(types.ModuleType):
    """The functions of `pynvml` that are used, over a list of parts."""

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818
        pass

    class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801, N818
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818
        pass

    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, parts: list[Part], failure: Exception | None = None) -> None:
        super().__init__("pynvml")
        self.parts, self.failure, self.open = parts, failure, 0

    def nvmlInit(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.parts)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Part:
        return self.parts[index]

    def nvmlDeviceGetName(self, part: Part) -> str:
        return part.name

    def nvmlDeviceGetUUID(self, part: Part) -> str:
        return part.uuid

    def nvmlDeviceGetCudaComputeCapability(self, part: Part) -> tuple[int, int]:
        return part.capability

    def nvmlDeviceGetMemoryInfo(self, part: Part) -> types.SimpleNamespace:
        if part.places:
            raise self.NVMLError("Insufficient Permissions")
        if not part.memory_bytes:
            raise self.NVMLError_NotSupported
        return types.SimpleNamespace(total=part.memory_bytes)

    def nvmlDeviceGetNumGpuCores(self, part: Part) -> int:
        return part.cores

    def nvmlDeviceGetMigMode(self, part: Part) -> list[int]:
        if part == T4:
            raise self.NVMLError_NotSupported
        return [int(bool(part.places))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, part: Part) -> int:
        return len(part.places)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, part: Part, index: int) -> Part:
        found = part.places[index]
        if found is None:
            raise self.NVMLError_NotFound
        return found

    def nvmlDeviceGetAttributes_v2(self, part: Part) -> types.SimpleNamespace:
        return types.SimpleNamespace(multiprocessorCount=part.cores)

    def nvmlDeviceGetP2PStatus(self, part: Part, other: Part, index: int) -> int:
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK and part is not other
        if T4 in (part, other):
            raise self.NVMLError_NotSupported
        return self.NVML_P2P_STATUS_OK if part.name == other.name else 5  # not supported


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    """Return a function that puts parts, or a failure, into this machine."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*parts: Part, failure: str | None = None) -> FakeNvml:
        fake = FakeNvml(list(parts))
        if failure is not None:
            fake.failure = getattr(fake, failure)("it says")
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return install


@pytest.fixture(scope="session")
def gpu() -> str:
    """Return the device of a real GPU; tests that want one are skipped elsewhere."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and a CUDA build of torch")
    return "cuda:0"


def attention_scores(spec: AttentionSpec, facts: DeviceFacts) -> dict[str, float]:
    """Return the scores of the candidates for attention that accept."""
    verdicts = {c.name: c.supports(spec, facts) for c in offered() if c.slot == "attention"}
    return {name: verdict.score for name, verdict in verdicts.items() if verdict.accepted}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch):
    """Return a function that installs a library which a test plays.

    Args of it: the module's name, what is installed and its version, and the module's functions.
    """
    known: dict[str, str] = {}
    others = packages.installed

    def version(distribution: str) -> str | None:
        return known.get(distribution) or others(distribution)

    def install(name: str, distribution: str, release: str, **functions: object) -> None:
        known[distribution] = release
        parts = name.split(".")
        for at in range(1, len(parts) + 1):
            module = types.ModuleType(".".join(parts[:at]))
            monkeypatch.setitem(sys.modules, module.__name__, module)
        vars(module).update(functions)

    monkeypatch.setattr(packages, "installed", version)
    return install


def defect_of(slot: str, build: Any, spec: Any, shape: Any, facts: DeviceFacts) -> str:
    """Run one case of the conformance kit on fresh numbers; say what is wrong, "" for nothing."""
    suite = SUITES[slot]
    case = Case(slot, 0, secrets.randbelow(10**6), Setup(spec, shape))
    problem = case.problem(suite)
    mine = Candidate(slot, "mine", lambda s, f: accept(1), build)
    return judge(mine, spec, facts, lambda: problem, problem.expected).defect
