"""Attention of prompts on sm_90: what the kernel is for, how it is launched, its numbers on a GPU.

No interpreter runs that kernel. Elsewhere a stand-in takes the launches.
"""

from __future__ import annotations

import inspect
import os
import secrets
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.platforms.triton.conftest import DEVICE, device_facts, far_apart
from tests.platforms.triton.test_attention import Case
from triton import knobs

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Alibi, AttentionSpec
from hotshoe_cuda import attention as cudnn
from hotshoe_cuda import prompt
from hotshoe_cuda.kernels import prompt as kernels
from hotshoe_triton import attention
from hotshoe_triton.device import ARCHS

H200 = device_facts("sm_90", units=132)
SPEC = AttentionSpec(4, 2, 64, "bfloat16", "bfloat16", 16, 0.125)
FP8 = {"kv_dtype": "float8_e4m3fn", "kv_scales": "tensor"}
#: Tiles of queries that begin and end inside requests; one request that decodes.
STEPS = [(9, 33), (1, 50), (200, 300), (2, 2)]


class StandIn:
    """Computes what the kernel does, for one part, from the tensors behind its descriptors."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(
            out: Any, q: Any, k: Any, v: Any, table: Any, starts: Any, lens: Any, _sinks: Any,
            _partial: Any, _stats: Any, _cells: Any, reqs: int, _q_stride: int, _table_stride: int,
            page_rows: int, **constants: Any,
        ) -> None:  # fmt: skip
            self.launched.append(grid)
            size, group = constants["BLOCK_SIZE"], constants["GROUP"]
            assert k.block_shape == v.block_shape == [min(size, constants["BLOCK_N"]), 64]
            for row in range(reqs):
                begin, end, length = int(starts[row]), int(starts[row + 1]), int(lens[row])
                if end - begin <= 1:
                    continue
                at = torch.arange(length, device=table.device)
                first = table[row, at // size].long() * page_rows + at % size
                seen = at <= torch.arange(length - (end - begin), length, device=at.device)[:, None]
                for head in range(constants["NUM_HEADS"]):
                    rows = first + head // group * size
                    scores = q[begin:end, head].float() @ k.base[rows].float().T
                    scores = (scores * constants["SCALE"]).masked_fill(~seen, -torch.inf)
                    y = scores.softmax(-1) @ v.base[rows].float()
                    out.view(len(q), -1, q.size(-1))[begin:end, head] = y.to(out.dtype)

        return launch


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()
    monkeypatch.setattr(kernels, "prompt_attention", found)
    return found


def seeded(device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(secrets.randbits(32))


def run(case: Case, facts: DeviceFacts) -> torch.Tensor:
    torch.full_like(case.q, float("nan"))  # what the caching allocator is likely to hand out
    tiling = replace(prompt.tiling_of(case.spec), least=0)
    operation = prompt.Attention(case.spec, facts, tiling)
    return operation(case.q, case.cache, case.meta, case.sinks)


@pytest.mark.parametrize("block_stride", [0, 2240])
@pytest.mark.parametrize("changes", [{}, {"head_dim": 32, "num_heads": 6}], ids=str)
def test_prompts_are_launched(
    stand_in: StandIn, changes: dict[str, Any], block_stride: int
) -> None:
    """Blocks may lie apart: their distance is counted in rows."""
    here = replace(H200, device=DEVICE)
    case = Case(replace(SPEC, **changes), STEPS, seeded(DEVICE), block_stride)
    actual = run(case, here)
    torch.testing.assert_close(actual, case.expected(), rtol=2e-2, atol=2e-2)
    rows = 192 // (case.spec.num_heads // 2)
    assert stand_in.launched == [(2, 212 // rows + 4, 1)]


@pytest.mark.parametrize(
    ("tiles", "longest", "parts"),
    [(8, 32768, 8), (33, 32768, 2), (34, 32768, 1), (33, 2047, 1), (2, 3100, 3)],
)
def test_how_many_programs_share_a_tile(tiles: int, longest: int, parts: int) -> None:
    operation = prompt.Attention(SPEC, replace(H200, device=DEVICE))
    assert operation._parts(tiles, longest) == parts
    scratch, stats, counters = operation._meeting(tiles, parts, torch.device(DEVICE))
    rows = tiles * 2 * 192 * parts
    assert parts == 1 or (scratch.numel(), stats.numel()) == (rows * 66, rows * 2)
    assert counters.numel() >= tiles * 2 * 3


def test_few_tiles_share_a_long_context(stand_in: StandIn) -> None:
    case = Case(SPEC, [(20, 3000)], seeded(DEVICE))
    run(case, replace(H200, device=DEVICE))
    assert stand_in.launched == [(2, 1, 2)]


@pytest.mark.parametrize("stride", [2049, 2056])
def test_the_portable_kernel_takes_what_it_cannot(stand_in: StandIn, stride: int) -> None:
    """Blocks that lie a fraction of a row apart."""
    case = Case(SPEC, [(9, 33)], seeded(DEVICE), stride)
    torch.testing.assert_close(
        run(case, replace(H200, device=DEVICE)), case.expected(), rtol=2e-2, atol=2e-2
    )
    assert not stand_in.launched


@pytest.mark.parametrize(("window", "length"), [(None, 33), (20, 2100)])
def test_the_portable_kernel_takes_rows_that_see_little(
    stand_in: StandIn, window: int | None, length: int
) -> None:
    here, spec = replace(H200, device=DEVICE), replace(SPEC, window=window)
    case = Case(spec, [(9, length)], seeded(DEVICE))
    actual = prompt.Attention(spec, here)(case.q, case.cache, case.meta, None)
    torch.testing.assert_close(actual, case.expected(), rtol=2e-2, atol=2e-2)
    assert not stand_in.launched


def test_steps_that_only_decode_are_the_portable_kernels(stand_in: StandIn) -> None:
    case = Case(SPEC, [(1, 37), (1, 90)], seeded(DEVICE))
    torch.testing.assert_close(
        run(case, replace(H200, device=DEVICE)), case.expected(), rtol=2e-2, atol=2e-2
    )
    assert not stand_in.launched


@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        ({}, "sm_90", ""),
        ({"head_dim": 256, "window": 40, "softcap": 5.0, "sinks": True}, "sm_90", ""),
        ({"alibi": Alibi(4)}, "sm_90", "ALiBi"),
        (FP8, "sm_90", "keys of their own"),
        ({**FP8, "num_heads": 36}, "sm_90", "float8_e4m3fn is left to the portable kernel"),
        ({"dtype": "float32", "kv_dtype": "float32"}, "sm_90", "float32 is not one of"),
        ({"block_size": 48}, "sm_90", "block_size 48"),
        ({}, "sm_100", "sm_100 lacks sm_90's wgmma"),
    ],
)
def test_verdicts(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], arch: str, reason: str
) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    verdict = prompt.supports(replace(SPEC, **changes), device_facts(arch))
    accepted = reason in ("", "keys of their own")
    assert verdict.accepted == accepted and reason in verdict.reason


def test_it_is_refused_where_kernels_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    assert "interpreter" in prompt.supports(SPEC, H200).reason


@pytest.mark.parametrize(
    ("width", "tiling"), [*prompt.TILINGS.items(), *prompt.SMALL_BLOCKS.items()]
)
def test_tiles_and_queries_fit_shared_memory(width: int, tiling: prompt.Tiling) -> None:
    rows = tiling.consumers * prompt.ROWS + 2 * tiling.stages * tiling.keys
    assert rows * width * 2 < ARCHS["sm_90"].shared_bytes - 1024
    assert (kernels.ROWS.value, kernels.PANEL.value) == (prompt.ROWS, prompt.PANEL)


def compile_kernel(*dims: int) -> None:
    """Compile what heads of these sizes launch; spilled bytes may lie in masked tiles alone."""
    from hotshoe.slots import AttentionMetadata, AttentionSpec
    from hotshoe_cuda.prompt import Attention
    from hotshoe_triton.cases import kv_cache, tensor
    from hotshoe_triton.device import ARCHS
    from hotshoe_triton.matrix import Compiling, facts_of, usage

    arch, facts = ARCHS["sm_90"], facts_of("sm_90")
    for dim in dims:
        spec = AttentionSpec(8, 2, dim, "bfloat16", "bfloat16", 32, 0.1, window=4000, softcap=30.0)
        ints = [tensor(facts, n, dtype="int32") for n in (2, 1, 64)]
        table = tensor(facts, 1, 32, dtype="int32")
        meta = AttentionMetadata(1, ints[0], ints[1], table, ints[2], 64, 4096)
        with Compiling(arch) as compiling:
            q = tensor(facts, 64, 8, dim, dtype="bfloat16")
            Attention(spec, facts)(q, kv_cache(facts, spec), meta, None)
        [(name, compiled)] = compiling.compiled
        assert name == "prompt_attention"
        assert compiled.metadata.shared <= arch.shared_bytes
        _registers, spilled = usage(arch, compiled)
        assert spilled is not None and spilled <= 160, (dim, spilled)


@pytest.mark.parametrize(
    "dims", [(96,), pytest.param((64, 128, 192, 256), marks=pytest.mark.slow)], ids=str
)
def test_the_kernel_compiles(dims: tuple[int, ...]) -> None:
    code = f"{inspect.getsource(compile_kernel)}\ncompile_kernel{dims}"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


CHANGES: list[dict[str, Any]] = [
    {},
    {"sinks": True, "window": 21},
    {"num_heads": 7, "num_kv_heads": 1, "head_dim": 80},
    {"head_dim": 96, "softcap": 5.0},
    {"head_dim": 256, "softcap": 2.0, "window": 40},
    {"head_dim": 128, "block_size": 256, "num_heads": 8},
    {"dtype": "float16", "kv_dtype": "float16", "head_dim": 32},
    {"head_dim": 192, "block_size": 64, "num_heads": 64},
    {"head_dim": 96, "block_size": 32},
]
ON_GPU = [STEPS, [(700, 700), (300, 1000), (1, 5)], [(130, 900)], [(40, 3000), (7, 5000)]]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_its_numbers(gpu: str, changes: dict[str, Any]) -> None:
    properties = torch.cuda.get_device_properties(0)
    if (properties.major, properties.minor) != (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0")
    units = properties.multi_processor_count
    facts = DeviceFacts("cuda", gpu, properties.name, "sm_90", properties.total_memory, units)
    spec = replace(SPEC, **changes)
    for steps in [*ON_GPU, [(2, 3)] * 300]:
        case = Case(spec, steps, seeded(gpu))
        torch.testing.assert_close(run(case, facts), case.expected(), rtol=2e-2, atol=2e-2)


def test_blocks_far_apart_need_64_bits(gpu: str) -> None:
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0")
    facts = DeviceFacts("cuda", gpu, "", "sm_90", 0, 132)
    case = Case(SPEC, [(5, 12)], seeded(gpu))
    expected = case.expected()
    own = case.cache[:, int(case.table[0, 0])].flatten()
    blocks = far_apart(torch.stack([torch.full_like(own, float("nan"))] * 2 + [own]))
    case.cache = blocks.unflatten(1, (2, -1)).transpose(0, 1)
    case.table[:] = 2
    torch.testing.assert_close(run(case, facts), expected, rtol=2e-2, atol=2e-2)


def test_which_candidate_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    facts = replace(H200, features=frozenset({"wgmma", "tma"}))

    def chosen(**changes: Any) -> str:
        spec = replace(SPEC, **changes)
        offered = {"streaming": prompt, "cudnn": cudnn, "triton": attention}
        verdicts = {name: module.supports(spec, facts) for name, module in offered.items()}
        return max(verdicts, key=lambda name: verdicts[name].score or 0)

    assert chosen() == chosen(head_dim=256) == "streaming"
    assert chosen(head_dim=96) == chosen(head_dim=128) == "cudnn"  # blocks of 16
    assert chosen(head_dim=128, block_size=32) == chosen(head_dim=128, window=512) == "streaming"
    assert chosen(alibi=Alibi(4)) == "triton"
    narrow = {"kv_dtype": "int8", "kv_scales": "token", "num_heads": 32, "num_kv_heads": 8}
    assert chosen(**narrow) == "streaming" and chosen(head_dim=256, **narrow) == "triton"


def test_cudnn_streams_what_it_does_not_compute(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    streams = cudnn.Attention(SPEC, H200)._streams
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    assert streams and not cudnn.Attention(SPEC, H200)._streams
