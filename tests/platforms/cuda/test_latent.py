"""Latent attention on sm_90: what the kernel is for, how it is launched, and its numbers on a GPU.

No interpreter runs that kernel. Elsewhere a stand-in takes the launches.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.platforms.triton.conftest import DEVICE, device_facts, far_apart
from tests.platforms.triton.test_latent import Case, check
from triton import knobs

from hotshoe.platform import DeviceFacts
from hotshoe.slots import MlaAttentionSpec
from hotshoe.slots.reference import mla_attention as plain
from hotshoe_cuda import latent
from hotshoe_cuda.kernels import latent as kernels

H200 = device_facts("sm_90", units=132)
SPEC = MlaAttentionSpec(64, 512, 32, 64, 32, "bfloat16", "bfloat16", 32, 96**-0.5)
#: Two tiles each, so that no request is cut.
WHOLE = [(1, 128), (1, 100), (1, 128)]


class StandIn:
    """Computes what the kernel does from the tensors behind its descriptors."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, int]] = []

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        def launch(
            out: Any, wide: Any, q: Any, rows: Any, table: Any, lens: Any, *rest: Any,
            **constants: Any,
        ) -> None:  # fmt: skip
            self.launched.append(grid)
            shapes = [d.block_shape for d in (wide, q, rows)]
            assert shapes == [[64, 256], [64, 64], [32, 64]]
            heads, size = constants["NUM_HEADS"], constants["BLOCK_SIZE"]
            wide_rows = wide.base.view(-1, heads, 512).float()
            q_rows = q.base.view(len(wide_rows), heads, -1)[..., constants["NOPE"] :].float()
            blocks = rows.base.view(-1, size, 576)
            for row, length in enumerate(lens.tolist()):
                keys = blocks[table[row, : -(-length // size)].long()].flatten(0, 1)[:length]
                keys = keys.float()
                scores = wide_rows[row] @ keys[:, :512].T + q_rows[row] @ keys[:, 512:].T
                weights = (scores * constants["SCALE"]).softmax(-1)
                out[row] = (weights @ keys[:, :512]).to(out.dtype)

        return launch


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()
    monkeypatch.setattr(kernels, "latent_decode", found)
    return found


@pytest.mark.parametrize("heads", [64, 128])
def test_steps_that_only_decode_are_launched(stand_in: StandIn, heads: int) -> None:
    here, rng = (
        replace(H200, device=DEVICE),
        torch.Generator(DEVICE).manual_seed(secrets.randbits(32)),
    )
    spec = replace(SPEC, num_heads=heads)
    check(Case(spec, WHOLE, rng), here, latent.MlaAttention(spec, here))
    assert stand_in.launched == [(heads // 64, 132 * 64 // heads)]


@pytest.mark.parametrize("kind", ["mixed", "far apart"])
def test_the_portable_kernels_take_what_it_cannot(stand_in: StandIn, kind: str) -> None:
    here, rng = (
        replace(H200, device=DEVICE),
        torch.Generator(DEVICE).manual_seed(secrets.randbits(32)),
    )
    case = Case(SPEC, [(3, 40)] if kind == "mixed" else [(1, 70)], rng)
    cache = case.cache if kind == "mixed" else far_apart(case.cache)
    expected = case.run(plain.MlaAttention(SPEC, here), case.cache.clone())
    actual = case.run(latent.MlaAttention(SPEC, here), cache)
    torch.testing.assert_close(actual, expected, rtol=3e-2, atol=3e-2)
    assert not stand_in.launched


@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        ({}, "sm_90", ""),
        ({"num_heads": 96}, "sm_90", "96 heads are no multiple of 64"),
        ({"latent_dim": 256}, "sm_90", "(256, 64), not (512, 64)"),
        ({"block_size": 16}, "sm_90", "block_size 16 is below 32"),
        ({"dtype": "float32", "kv_dtype": "float32"}, "sm_90", "float32 is not one of"),
        ({"scale": 0.0}, "sm_90", "scale 0.0 is not positive"),
        ({"kv_dtype": "int8"}, "sm_90", "int8: its tiles are copied as they are multiplied"),
        ({}, "sm_100", "sm_100 lacks sm_90's wgmma"),
    ],
)
def test_verdicts(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], arch: str, reason: str
) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    verdict = latent.supports(replace(SPEC, **changes), device_facts(arch))
    assert verdict.accepted == (not reason) and reason in verdict.reason


def test_it_is_refused_where_kernels_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    assert "interpreter" in latent.supports(SPEC, H200).reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("lengths", [[1], [63, 65, 33, 700, 1, 192], [5000], [4096] * 40], ids=str)
def test_its_numbers(gpu: str, lengths: list[int], size: int, dtype: str) -> None:
    properties = torch.cuda.get_device_properties(0)
    if (properties.major, properties.minor) != (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0")
    units = properties.multi_processor_count
    facts = DeviceFacts("cuda", gpu, properties.name, "sm_90", properties.total_memory, units)
    rng = torch.Generator(gpu).manual_seed(secrets.randbits(32))
    spec = replace(SPEC, num_heads=128, block_size=size, dtype=dtype, kv_dtype=dtype)
    case = Case(spec, [(1, length) for length in lengths], rng)
    check(case, facts, latent.MlaAttention(spec, facts))
