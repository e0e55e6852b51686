"""Detection with its causes, facts, and what the platform decides; no GPU is needed."""

from types import SimpleNamespace

import pytest
import torch
from tests.platforms.cuda.conftest import A100, H200, T4

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, PlatformError
from hotshoe.platform import Absent, Available, Broken
from hotshoe.slots import SLOTS, Selector
from hotshoe_cuda.nvml import Gpu
from hotshoe_cuda.platform import CudaPlatform
from hotshoe_cuda.targets import describe
from hotshoe_triton import gpu


@pytest.fixture
def cuda_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    build = {"__version__": "2.11.0+cu130", "cuda": "13.0", "hip": None, "xpu": None}
    monkeypatch.setattr(gpu, "torch_build", lambda: build)


def test_available(install, cuda_torch) -> None:
    install(H200)
    assert CudaPlatform().probe() == Available(100)


def test_absent_without_a_driver(install) -> None:
    install(failure="NVMLError_LibraryNotFound")
    assert isinstance(CudaPlatform().probe(), Absent)


def test_absent_when_every_gpu_is_hidden(install, monkeypatch) -> None:
    install(H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    detection = CudaPlatform().probe()
    assert isinstance(detection, Absent)
    assert "CUDA_VISIBLE_DEVICES" in detection.reason


def test_absent_when_the_gpu_is_too_old(install, cuda_torch) -> None:
    install(T4)
    reason = "Tesla T4 is older than compute capability 8.0"
    assert CudaPlatform().probe() == Absent(reason)
    install(T4, A100)
    other = "NVIDIA A100-SXM4-80GB is not: set CUDA_VISIBLE_DEVICES=GPU-11aa"
    assert CudaPlatform().probe() == Absent(f"{reason}; {other}")
    install(A100, T4)
    assert CudaPlatform().probe() == Available(100)


def test_broken_driver(install) -> None:
    install(failure="NVMLError")
    assert isinstance(CudaPlatform().probe(), Broken)


def test_a_gpu_without_a_cuda_build_of_torch_is_broken_not_absent(install, monkeypatch) -> None:
    install(H200)
    build = {"__version__": "2.13.0+cpu", "cuda": None, "hip": None, "xpu": None}
    monkeypatch.setattr(gpu, "torch_build", lambda: build)
    detection = CudaPlatform().probe()
    assert isinstance(detection, Broken)
    assert "install the CUDA build of torch" in detection.cause


def test_facts(install) -> None:
    install(H200, A100)
    facts = CudaPlatform().facts()
    assert (facts.device, facts.arch, facts.compute_units) == ("cuda:0", "sm_90", 132)
    assert facts.features == {"bfloat16", "fp8", "wgmma", "tma", "smem_227k"}


def test_another_device(install) -> None:
    install(H200, A100)
    platform = CudaPlatform()
    platform.resolve(EngineConfig(platform_options={"device": 1}))
    facts = platform.facts()
    assert (facts.device, facts.arch) == ("cuda:1", "sm_80")
    assert facts.features == {"bfloat16", "smem_163k"}
    platform.resolve(EngineConfig(platform_options={"device": 2}))
    with pytest.raises(ConfigError, match="2 GPUs are visible"):
        platform.facts()


def test_cudas_order_may_differ_from_nvmls(install, monkeypatch) -> None:
    install(A100, H200)
    platform = CudaPlatform()
    with pytest.raises(PlatformError, match=r"NVIDIA H200 at cuda:0, .*set CUDA_DEVICE_ORDER="):
        platform.taken(platform.chosen(), SimpleNamespace(name="NVIDIA H200", major=9, minor=0))
    matmul = SimpleNamespace()
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    found = platform.taken(platform.chosen(), SimpleNamespace(name="any", major=8, minor=0))
    assert found["driver"] == "580.1"
    assert matmul.allow_bf16_reduced_precision_reduction is False
    assert matmul.allow_fp16_reduced_precision_reduction is False


def test_each_rank_has_a_gpu_of_its_own(install) -> None:
    install(H200, H200, A100)
    for rank in (0, 1):
        platform = CudaPlatform()
        platform.resolve(EngineConfig(platform_options={"device": 1}))
        platform.take_part(rank, 2)
        assert platform.facts().device == f"cuda:{1 + rank}"
    with pytest.raises(ConfigError, match=r"need GPUs 0 to 3, but 3 are visible; lower .* to 3"):
        CudaPlatform().take_part(0, 4)


def test_what_is_open_is_decided(install) -> None:
    install(H200)
    changes = {c.field: c.value for c in CudaPlatform().resolve(EngineConfig())}
    assert set(changes) == {"block_size", "max_num_batched_tokens"}
    said = EngineConfig(block_size=16, max_num_batched_tokens=512)
    assert CudaPlatform().resolve(said) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 1}, "has no option 'devices'"),
        ({"device": -1}, "must not be negative"),
        ({"device": True}, "cannot be True"),
        ({"memory_fraction": 0}, "above 0"),
        ({"memory_fraction": 1.5}, "at most 1"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CudaPlatform().resolve(EngineConfig(platform_options=options))


def test_candidates_have_known_slots_and_unique_names() -> None:
    facts = describe(Gpu("NVIDIA H200", "GPU-1", (9, 0), 1 << 37, 132, "580"), 0)
    Selector(SLOTS, CudaPlatform().candidates(), facts)
