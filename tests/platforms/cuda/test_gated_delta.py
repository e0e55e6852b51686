"""The gated delta rule on sm_90: what the kernel is for, how it is launched, its numbers on a GPU.

No interpreter runs that kernel. Elsewhere the portable one takes the launches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.platforms.triton.conftest import DEVICE, check_caches, device_facts, drawn
from triton import knobs

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedDeltaSpec
from hotshoe_conformance.cases import gated_delta as cases
from hotshoe_conformance.cases.states import States
from hotshoe_cuda import gated_delta
from hotshoe_cuda.kernels import delta
from hotshoe_triton.kernels import delta_chunks

SPEC = GatedDeltaSpec(2, 1, 128, 128, 4, *["bfloat16"] * 2, "float32", 64, 1e-6)


class StandIn:
    """Computes what the kernel does from the tensors behind its descriptors."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(
            y: Any, v: Any, k: Any, q: Any, solved: Any, scores: Any, *others: Any, **constants: Any
        ) -> None:
            self.launched.append(grid)
            assert [d.block_shape for d in (v, k, q, solved, scores)] == [
                [64, 64], [64, 128], [64, 128], [64, 64], [64, 64],
            ]  # fmt: skip
            tensors = (d.base for d in (v, k, k, q, solved, scores))
            shape = {"K": 128, "BLOCK_K": 128, "BLOCK_L": 64, "BLOCK_V": 64, "CHANNELS": False}
            shape |= {"PARTS": 1, "STATE_PARTS": 2, "num_stages": 1}
            delta_chunks.carry_chunks[grid](y, *tensors, *others, **shape, **constants)

        return launch


@pytest.mark.parametrize(
    ("checkpoints", "requests"),
    [("none", ((70, 81), (1, 9), (17, 17))), ("all", ((90, 150),))],
)
def test_prompts_are_launched(
    monkeypatch: pytest.MonkeyPatch, checkpoints: str, requests: tuple[tuple[int, int], ...]
) -> None:
    found, here = StandIn(), replace(device_facts("sm_90"), device=DEVICE)
    monkeypatch.setattr(delta, "carry_chunks", found)
    spec = replace(SPEC, checkpoints=checkpoints)
    op = gated_delta.GatedDelta(spec, here)
    check_caches(drawn(cases.SUITE, spec, States(requests)), op, here)
    assert found.launched == [(len(requests), 2, 2)]


@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        ({}, "sm_90", ""),
        ({"dtype": "float16"}, "sm_90", "float16 is not bfloat16"),
        ({"key_dim": 64}, "sm_90", "key_dim 64 is not 128"),
        ({"value_dim": 96}, "sm_90", "value_dim 96 is no multiple of 64"),
        ({"decay": "channel"}, "sm_90", "chunks have 32 tokens, not 64"),
        ({"checkpoints": "all", "block_size": 32}, "sm_90", "chunks have 32 tokens, not 64"),
        ({"key_dim": 256, "value_dim": 256}, "sm_90", "exceed registers"),
        ({}, "sm_100", "sm_100 lacks sm_90's wgmma"),
    ],
)
def test_verdicts(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], arch: str, reason: str
) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    verdict = gated_delta.supports(replace(SPEC, **changes), device_facts(arch))
    assert verdict.accepted == (not reason) and reason in verdict.reason


@pytest.mark.parametrize("checkpoints", ["none", "align", "all"])
def test_its_numbers(gpu: str, checkpoints: str) -> None:
    properties = torch.cuda.get_device_properties(0)
    if (properties.major, properties.minor) != (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0")
    units = properties.multi_processor_count
    facts = DeviceFacts("cuda", gpu, properties.name, "sm_90", properties.total_memory, units)
    spec = replace(SPEC, num_heads=4, num_key_heads=2, checkpoints=checkpoints)
    steps = States(((140, 140), (70, 211), (1, 9), (17, 45), (64, 128)))
    check_caches(drawn(cases.SUITE, spec, steps), gated_delta.GatedDelta(spec, facts), facts)
