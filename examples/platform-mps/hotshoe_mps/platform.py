"""The platform: whether Metal is here, how much memory it has, and which candidates serve it.

Written from the public documentation of `torch.mps`, and not run on such a machine. `mps-played`
has the same candidates on a processor: it proves all but Metal itself.
"""

import os
import platform
from collections.abc import Mapping, Sequence

from hotshoe.config import EngineConfig
from hotshoe.platform import (
    Absent,
    Available,
    Broken,
    Detection,
    DeviceFacts,
    MemoryBudget,
    Platform,
)
from hotshoe.slots import (
    AttentionSpec,
    Candidate,
    LinearSpec,
    NormSpec,
    SampleSpec,
    Verdict,
    accept,
    accept_unless,
)

DTYPES = ("float32", "bfloat16", "float16")
SCORE = 10


class MpsPlatform(Platform):
    """The one GPU of an Apple processor, whose memory is the machine's."""

    name = "mps"
    device = "mps"
    features = frozenset({"shaders"})

    def probe(self) -> Detection:
        if (platform.system(), platform.machine()) != ("Darwin", "arm64"):
            return Absent("no Apple processor")
        import torch

        if not torch.backends.mps.is_built():
            return Broken(
                f"torch {torch.__version__} was built without Metal; install Apple's build"
            )
        if not torch.backends.mps.is_available():
            return Broken("PyTorch finds no Metal device; it needs macOS 14 or newer")
        return Available(score=100)

    def facts(self) -> DeviceFacts:
        return DeviceFacts(
            platform=self.name,
            device=self.device,
            name="Apple GPU",
            arch="metal",
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            compute_units=1,  # Metal does not tell how many there are
            features=self.features,
        )

    def candidates(self) -> Sequence[Candidate]:
        return (
            Candidate("attention", "metal", judge_attention, "hotshoe_mps.kernels:Attention"),
            Candidate("linear", "metal", judge_linear, "hotshoe_mps.kernels:Linear"),
            Candidate("rms_norm", "metal", judge_norm, "hotshoe_mps.kernels:build_norm", True),
            Candidate("sample", "host", judge_sample, "hotshoe_mps.kernels:build_sample"),
        )

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        import torch

        free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return MemoryBudget(max(free // 2, 0), "half of what Metal recommends and is free", free)

    def release_memory(self) -> None:
        import torch

        torch.mps.empty_cache()


class PlayedPlatform(MpsPlatform):
    """The same on a processor, by name alone; shaders are played by PyTorch."""

    name = "mps-played"
    device = "cpu"
    features: frozenset[str] = frozenset()

    def probe(self) -> Detection:
        return Available(score=-1)

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        return MemoryBudget(1 << 30, "a GiB of the machine's memory")

    def release_memory(self) -> None:
        """Keep nothing that could be given back."""


def judge_norm(spec: NormSpec, facts: DeviceFacts) -> Verdict:
    """Accept what the shader computes."""
    return _judge(spec.dtype, {"the shader quantizes no results": spec.quant is not None})


def judge_linear(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Accept plain products."""
    refusals = {
        "quantized operands are not multiplied": (spec.weight or spec.activation) is not None,
        f"results of type {spec.out_dtype} are not written": spec.out_dtype
        not in (None, spec.dtype),
    }
    return _judge(spec.dtype, refusals)


def judge_attention(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Accept what PyTorch's attention computes with a mask."""
    refusals = {
        "soft caps and sinks are not computed": spec.softcap is not None or spec.sinks,
        f"kv_dtype {spec.kv_dtype} differs from dtype {spec.dtype}": spec.kv_dtype != spec.dtype,
        "scores do not fall with the distance (ALiBi)": spec.alibi is not None,
        f"v_head_dim {spec.v_head_dim} differs from head_dim": spec.v_head_dim is not None,
    }
    return _judge(spec.dtype, refusals)


def judge_sample(spec: SampleSpec, facts: DeviceFacts) -> Verdict:
    """Accept everything: Metal has no float64, so core's reference runs on the host."""
    return accept(SCORE, "on the host")


def _judge(dtype: str, refusals: Mapping[str, bool]) -> Verdict:
    known = {f"element type {dtype} is not one of {', '.join(DTYPES)}": dtype not in DTYPES}
    return accept_unless({**known, **refusals}, SCORE, "Metal")
