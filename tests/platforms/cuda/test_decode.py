"""Single queries on sm_90: what the kernel serves, how it is tiled and launched, and its numbers.

The interpreter runs the kernel where `played` adds what it lacks; a GPU runs it as it is.
"""

from __future__ import annotations

import inspect
import os
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.platforms.cuda.played import Kernel
from tests.platforms.triton.conftest import (
    DEVICE,
    ON_DEVICE,
    check_results,
    device_facts,
    drawn,
    far_apart,
)
from tests.platforms.triton.test_attention import Case
from triton import knobs

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Alibi, AttentionSpec
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.attention import Batch
from hotshoe_cuda import attention as cudnn
from hotshoe_cuda import decode, flash3, prompt
from hotshoe_cuda.kernels import decode as kernels
from hotshoe_cuda.kernels import narrow, stretches
from hotshoe_triton.device import ARCHS

H200 = device_facts("sm_90", units=132)
SPEC = AttentionSpec(4, 2, 64, "bfloat16", "bfloat16", 16, 0.125)
EIGHT = replace(SPEC, num_heads=32, num_kv_heads=8)
#: Two warps with 16 keys each: tiles of 32, of which a request has up to ten.
SMALL = decode.Tiling(2, 16, 3, 2)
NARROW: dict[str, Any] = {"kv_dtype": "float8_e4m3fn", "kv_scales": "token"}
#: Whole requests, some cut by shares, one that all share, one key.
LENGTHS = [(1, 37), (1, 300), (1, 1), (1, 64), (1, 90)]
CHANGES: list[dict[str, Any]] = [
    {},
    {"window": 40, "sinks": True},
    {"softcap": 5.0, "num_heads": 14},
    {"head_dim": 128, "dtype": "float16", "kv_dtype": "float16", "num_heads": 2},
    {**NARROW, "head_dim": 128},
    {**NARROW, "dtype": "float16", "window": 70, "sinks": True},
    {"kv_dtype": "float8_e4m3fn", "kv_scales": "tensor"},
    {"kv_dtype": "float8_e5m2"},
    {"kv_dtype": "int8", "kv_scales": "token", "num_heads": 10, "block_size": 64},
]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kernel:
    """The kernel, interpreted."""
    if ON_DEVICE:
        pytest.skip("kernels run on the device here")
    paths = [Path(module.__file__) for module in (narrow, stretches, kernels)]
    found = Kernel(paths, "decode_attention", tmp_path, monkeypatch)
    monkeypatch.setattr(kernels, "decode_attention", found)
    return found


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_numbers_of_the_interpreted_kernel(played: Kernel, changes: dict[str, Any]) -> None:
    spec, facts = replace(SPEC, **changes), device_facts("sm_90")
    operation = decode.Attention(spec, facts, SMALL)
    check_results(drawn(SUITES["attention"], spec, Batch(tuple(LENGTHS))), operation, facts)
    assert played.launched == [(2, 4)]
    assert not any(counters.any() for counters in operation._counters)


def test_prompts_in_a_step_are_left_out(played: Kernel) -> None:
    requests = ((2, 40), (1, 200), (3, 9), (4, 4), (1, 70), (2, 2))
    facts = device_facts("sm_90")
    for changes in ({}, NARROW):
        spec = replace(SPEC, **changes)
        operation = prompt.Attention(spec, facts, ring=SMALL)
        check_results(drawn(SUITES["attention"], spec, Batch(requests)), operation, facts)
    assert played.launched == [(2, 4)] * 2


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e12])
def test_queries_of_any_size(played: Kernel, size: float) -> None:
    """They are divided by a power of two, since float16 holds no numbers so far from 1."""
    facts = device_facts("sm_90")
    spec = replace(SPEC, **NARROW, scale=1e-12 if size > 1 else 0.1)
    problem = drawn(SUITES["attention"], spec, Batch(((1, 20), (1, 33))))
    problem.q.mul_(size / problem.q.abs().max())
    check_results(problem, decode.Attention(spec, facts, SMALL), facts)


@pytest.mark.parametrize("block_size", [16, 64])
def test_what_the_step_writes_is_read_behind_the_kernels_in_front(
    played: Kernel, block_size: int
) -> None:
    """The last three rows are one request with drafts, and read what each other write."""
    facts, spec = device_facts("sm_90"), replace(SPEC, block_size=block_size)
    rng = torch.Generator(DEVICE).manual_seed(secrets.randbits(32))
    case = Case(spec, [(1, length) for length in (37, 300, 1, 64, 191, 190, 189)], rng)
    case.table[5:] = case.table[4]
    last = case.meta.seq_lens - 1
    pages = case.table[torch.arange(7), last // block_size].long()
    case.meta.slot_mapping = (pages * block_size + last % block_size).int()
    shape = (2, -1, *(spec.num_kv_heads, block_size, spec.head_dim))
    cells, expected = case.cache.view(shape).transpose(2, 3), case.expected()
    fresh = cells[:, pages, last % block_size].clone()
    cells[:, pages, last % block_size] = 77.0

    def end() -> None:
        cells[:, pages, last % block_size] = fresh

    played.others_end = end
    actual = decode.Attention(spec, facts, SMALL)(case.q, case.cache, case.meta, None)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("stride", [2056, 2064])
def test_blocks_may_lie_apart(played: Kernel, stride: int) -> None:
    """Threads copy 16 bytes at once, so the portable kernel takes what is not aligned."""
    facts = device_facts("sm_90")
    rng = torch.Generator(DEVICE).manual_seed(secrets.randbits(32))
    case = Case(SPEC, [(1, 37), (1, 90)], rng, stride)
    operation = decode.Attention(SPEC, facts, SMALL)
    actual = operation(case.q, case.cache, case.meta, None)
    torch.testing.assert_close(actual, case.expected(), rtol=2e-2, atol=2e-2)
    assert len(played.launched) == (stride == 2064)


@pytest.mark.parametrize(
    ("changes", "arch", "served"),
    [
        ({}, "sm_90", True),
        ({"head_dim": 128, **NARROW, "sinks": True}, "sm_90", True),
        ({"window": 40}, "sm_90", True),
        ({"window": 40, **NARROW}, "sm_90", True),
        ({"num_heads": 16}, "sm_90", True),
        ({"num_heads": 64}, "sm_90", True),
        ({"num_heads": 72}, "sm_90", False),
        ({"num_kv_heads": 2, "num_heads": 14}, "sm_90", True),
        ({"num_kv_heads": 1, "num_heads": 8}, "sm_90", False),
        ({"head_dim": 256}, "sm_90", False),
        ({"head_dim": 96}, "sm_90", False),
        ({"alibi": Alibi(4)}, "sm_90", False),
        ({"dtype": "float32", "kv_dtype": "float32"}, "sm_90", False),
        ({}, "sm_100", False),
    ],
)
def test_what_it_serves(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], arch: str, served: bool
) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    spec, facts = replace(EIGHT, **changes), device_facts(arch, units=132)
    assert decode.serves(spec, facts) == served
    assert decode.Attention(spec, facts)._rings == served


def test_steps_of_few_requests_are_left_but_of_narrow_heads(
    played: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "serves", lambda spec, facts: True)
    facts = device_facts("sm_90")
    for spec, launched in ((replace(SPEC, head_dim=128), 1), (SPEC, 2)):
        operation = decode.Attention(spec, facts)
        played.launched.clear()
        for count in (4, 5):
            requests = ((1, 20),) * count
            check_results(drawn(SUITES["attention"], spec, Batch(requests)), operation, facts)
        assert len(played.launched) == launched


@pytest.mark.parametrize("module", [cudnn, flash3, prompt])
def test_who_builds_on_it(module: ModuleType) -> None:
    assert issubclass(module.Attention, decode.Attention)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("changes", [{}, NARROW, {"kv_dtype": "float8_e5m2"}], ids=str)
def test_four_programs_of_three_tiles_fit_a_unit(dim: int, changes: dict[str, Any]) -> None:
    spec = replace(EIGHT, head_dim=dim, **changes)
    found = decode.tiling(spec)
    row = dim * decode.itemsize_of(spec) + 4 * (changes is NARROW)
    stage = found.warps * found.keys * 2 * row
    assert (found.programs_per_unit, found.stages >= 3) == (4, True)
    assert 4 * (found.stages * stage + 1024) < ARCHS["sm_90"].shared_bytes


def compile_kernel(changes: list[dict[str, Any]]) -> None:
    """Compile what steps of one query each launch; nothing is spilled, and two programs fit."""
    from dataclasses import replace

    from hotshoe.slots import AttentionSpec
    from hotshoe_cuda.decode import Attention
    from hotshoe_triton.attention_cases import kv_cache, step_of, tensor
    from hotshoe_triton.device import ARCHS
    from hotshoe_triton.matrix import Compiling, facts_of, usage

    arch, facts = ARCHS["sm_90"], facts_of("sm_90")
    for change in changes:
        spec = replace(AttentionSpec(32, 8, 128, "bfloat16", "bfloat16", 16, 0.1), **change)
        step, q = step_of(facts, spec, 1, 8, 512)
        sinks = tensor(facts, spec.num_heads, dtype="float32") if spec.sinks else None
        operation = Attention(spec, facts)
        operation.kv_scales = tensor(facts, 2, dtype="float32")
        with Compiling(arch) as compiling:
            operation(q, kv_cache(facts, spec), step, sinks)
        [(_name, compiled)] = compiling.compiled
        assert 4 * (compiled.metadata.shared + 1024) <= arch.shared_bytes + 1024
        assert usage(arch, compiled)[1] == 0, change


@pytest.mark.parametrize(
    "changes",
    [
        [{"kv_dtype": "float8_e4m3fn", "kv_scales": "token"}],
        pytest.param(
            [
                *({}, {"head_dim": 64}, {"head_dim": 64, "window": 40, "sinks": True}),
                {"dtype": "float16", "kv_dtype": "float16", "softcap": 5.0, "num_heads": 16},
                {"kv_dtype": "float8_e4m3fn", "kv_scales": "tensor", "num_heads": 24},
                {"kv_dtype": "float8_e5m2", "head_dim": 64},
                {"kv_dtype": "int8", "kv_scales": "token", "sinks": True, "block_size": 64},
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["quick", "all"],
)
def test_the_kernel_compiles(changes: list[dict[str, Any]]) -> None:
    code = f"from typing import Any\n{inspect.getsource(compile_kernel)}\ncompile_kernel({changes})"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


ON_GPU = [
    LENGTHS,
    [(1, 9000)],
    [(1, 200 + 7 * i) for i in range(80)],
    [(1, 900), (3, 70), (1, 1), (2, 2), (1, 3000)],
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_its_numbers(gpu: str, changes: dict[str, Any]) -> None:
    properties = torch.cuda.get_device_properties(0)
    if (properties.major, properties.minor) != (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0")
    units = properties.multi_processor_count
    facts = DeviceFacts("cuda", gpu, properties.name, "sm_90", properties.total_memory, units)
    spec = replace(SPEC, **changes)
    # The portable kernel, which has the others, multiplies such weights as bfloat16.
    alone = spec.dtype == "float16" and spec.kv_scales == "token"
    for requests in ON_GPU[: -1 if alone else None]:
        operation = prompt.Attention(spec, facts, ring=decode.tiling(spec))
        for _ in range(2):
            check_results(
                drawn(SUITES["attention"], spec, Batch(tuple(requests))), operation, facts
            )
        assert not any(counters.any() for counters in operation._counters)


def test_blocks_far_apart_need_64_bits(gpu: str) -> None:
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0")
    facts = DeviceFacts("cuda", gpu, "", "sm_90", 0, 132)
    case = Case(SPEC, [(1, 12)], torch.Generator(gpu).manual_seed(secrets.randbits(32)))
    own = case.cache[:, int(case.table[0, 0])].flatten()
    expected = case.expected()
    blocks = far_apart(torch.stack([torch.full_like(own, float("nan"))] * 2 + [own]))
    case.cache = blocks.unflatten(1, (2, -1)).transpose(0, 1)
    case.table[:] = 2
    operation = decode.Attention(SPEC, facts, decode.tiling(SPEC))
    actual = operation(case.q, case.cache, case.meta, None)
    assert operation._aligned
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
