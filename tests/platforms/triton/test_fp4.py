"""Products of 4-bit floats against a float64 reference of the published forms, written here.

The quantizers below go by the formats' descriptions and search for the nearest number. That
compilers make instructions of the kernel is tested in a process of its own.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.platforms.triton.conftest import (
    DEVICE,
    ON_DEVICE,
    device_facts,
    drawn,
    far_apart,
    found_here,
)
from tests.platforms.triton.test_matrix import need_compiler
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Candidate, LinearSpec
from hotshoe.slots.reference.linear import Linear as PlainLinear
from hotshoe_conformance.cases.linear import SUITE
from hotshoe_conformance.judge import judge
from hotshoe_triton import fp4
from hotshoe_triton.tuning import LinearConfig

GRID = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
#: Of the codes, those with an even mantissa win ties.
EVEN = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
FORMS = {name: {"weight": weight, "activation": x} for name, (weight, x) in fp4.FORMS.items()}
SPEC = LinearSpec(288, 40, "float32", **FORMS["nvfp4"])
#: Relative errors of whole results: of sums in float32, and of rounded results.
TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-3, "float16": 1e-3}
#: Scales of all x. With the first no number of 16 bits lies in the middle of two of four bits,
#: where float32 and float64 may go apart; with the second float32 is exact.
X_SCALE, POWER = 0.00167, 2.0**-9

pytestmark = pytest.mark.skipif(
    ON_DEVICE and found_here()[0] not in fp4.SCALED, reason="has no units for 4-bit floats"
)


@pytest.fixture
def facts() -> DeviceFacts:
    return device_facts(found_here()[0] if ON_DEVICE else "sm_100", DEVICE)


def eight_bits(values: Tensor) -> Tensor:
    """Round to the 8-bit floats that are scales."""
    return values.clamp(max=448).to(torch.float8_e4m3fn).double()


def nearest(values: Tensor) -> Tensor:
    """Return the nearest 4-bit floats, doubled; of two that are as near, the even one."""
    far = (values.abs()[..., None] - GRID.to(values.device)).abs()
    codes = (far + EVEN.to(values.device) * 1e-12).argmin(-1)
    return 2 * GRID.to(values.device)[codes] * values.sign()


def quantized(values: Tensor, size: int, whole: float | None) -> tuple[Tensor, Tensor]:
    """Return numbers, doubled, and their halved scales [rows, groups], in float64."""
    groups = values.double().unflatten(1, (-1, size))
    largest = groups.abs().amax(2)
    if whole is None:  # the least power of two by which no number reaches 7
        scale = torch.exp2(torch.floor(torch.log2(largest / 7)) + 1)
    else:
        scale = eight_bits(largest.float() / 6 / whole) * whole
    safe = torch.where(scale == 0, 1.0, scale)
    return nearest(groups / safe[..., None]).flatten(1), scale / 2


def dense(values: Tensor, scale: Tensor) -> Tensor:
    return values * scale.repeat_interleave(values.shape[1] // scale.shape[1], 1)


class Problem:
    """What a checkpoint holds, in two parts, and the product of a step by its numbers."""

    def __init__(
        self, spec: LinearSpec, count: int, rng: torch.Generator, x_scale: float = X_SCALE
    ) -> None:
        self.spec, size = spec, spec.weight.group_size
        self.whole = float(torch.tensor(x_scale)) if size == 16 else None
        device, self.w = rng.device, []
        self.tensors: dict[str, list[Tensor]] = {"weight": [], "weight_scale": []}
        for rows, whole in ((spec.out_features - 16, 3e-4), (16, 5e-5)):
            part = torch.randn(rows, spec.in_features, generator=rng, device=device) / 8
            values, scale = quantized(part, size, whole if size == 16 else None)
            self.w.append(dense(values, scale))
            self.tensors["weight"].append(values.to(torch.int8))
            self.tensors["weight_scale"].append(scale.float())
            if size == 16:
                for name, one in (("weight_global_scale", whole), ("input_scale", x_scale)):
                    share = one * (0.5 if name == "input_scale" and rows == 16 else 1)
                    self.tensors.setdefault(name, []).append(torch.tensor([share], device=device))
        if spec.bias:
            bias = torch.randn(spec.out_features, generator=rng, device=device)
            self.tensors["bias"] = list(bias.to(getattr(torch, spec.dtype)).split(rows_of(spec)))
        wide = torch.randn(count, spec.in_features + 16, generator=rng, device=device)
        self.x = wide.to(getattr(torch, spec.dtype))[:, : spec.in_features]

    def expected(self, x: Tensor) -> Tensor:
        y = dense(*quantized(x, self.spec.weight.group_size, self.whole)) @ torch.cat(self.w).T
        return y + torch.cat(self.tensors["bias"]).double() if self.spec.bias else y


def rows_of(spec: LinearSpec) -> tuple[int, int]:
    return spec.out_features - 16, 16


def check(problem: Problem, facts: DeviceFacts, config: LinearConfig | None = None) -> fp4.Linear:
    spec = problem.spec
    verdict = fp4.supports(spec, facts)
    assert verdict.accepted, verdict.reason
    operation = fp4.Linear(spec, facts)
    for block in fp4.ROW_BLOCKS if config else ():
        operation.configure(block, config)
    operation.load(problem.tensors)
    wanted = problem.expected(problem.x)
    for _ in range(2):  # counters must be zero again
        y = operation(problem.x)
        assert (y.dtype, y.is_contiguous()) == (getattr(torch, spec.out_dtype or spec.dtype), True)
        assert (y.double() - wanted).norm() / wanted.norm() < TOLERANCE[spec.dtype]
    return operation


@pytest.mark.parametrize(
    ("form", "count"),
    [
        *((form, count) for form in FORMS for count in (1, 17)),
        ("nvfp4", 130),
        # Rows of several tiles are found as those of the other form are.
        pytest.param("mxfp4", 130, marks=pytest.mark.slow),
    ],
)
def test_forms(form: str, count: int, facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(SPEC, **FORMS[form], bias=count == 17)
    operation = check(Problem(spec, count, rng), facts)
    # Half a byte a number, a byte a group, and a scale for each row.
    assert operation.state()["packed"].nbytes == 40 * 144
    assert operation.state()["weight_scale"].nbytes == 40 * 288 // spec.weight.group_size


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_types(dtype: str, facts: DeviceFacts, rng: torch.Generator) -> None:
    check(Problem(replace(SPEC, dtype=dtype), 3, rng), facts)
    spec = replace(SPEC, dtype=dtype, out_dtype="float32")
    assert check(Problem(spec, 3, rng), facts)(Problem(spec, 2, rng).x).dtype == torch.float32


@pytest.mark.parametrize(("inputs", "split"), [(1024, 2), (1040, 3), (272, 1)])
def test_splits_add_in_order(
    inputs: int, split: int, facts: DeviceFacts, rng: torch.Generator
) -> None:
    problem = Problem(replace(SPEC, in_features=inputs), 5, rng)
    config = LinearConfig("fp4", 128, fp4.BLOCK_K, split, 4, 2)
    operation = check(problem, facts, config)
    assert torch.equal(operation(problem.x), operation(problem.x))


@pytest.mark.parametrize("form", FORMS)
def test_the_reference_rounds_x_alike(form: str, facts: DeviceFacts, rng: torch.Generator) -> None:
    problem = Problem(replace(SPEC, **FORMS[form], bias=True), 9, rng)
    plain = PlainLinear(problem.spec, facts)
    plain.load(problem.tensors)
    wanted = problem.expected(problem.x)
    assert (plain(problem.x).double() - wanted).norm() / wanted.norm() < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_ties_zeros_and_the_ends_of_the_range(
    form: str, facts: DeviceFacts, rng: torch.Generator
) -> None:
    problem = Problem(replace(SPEC, **FORMS[form], in_features=32), 6, rng, POWER)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], device=rng.device)
    x = torch.cat([ties, -ties, ties, ties]).repeat(6, 1)
    # Scales of 1, of zeros, too small for any, too large for all, and between.
    x *= torch.tensor([[1.0], [0.0], [1e-9], [1e6], [1.3], [0.7]], device=rng.device)
    x *= problem.whole or 1.0
    operation = fp4.Linear(problem.spec, facts)
    operation.load(problem.tensors)
    wanted = problem.expected(x)
    torch.testing.assert_close(operation(x).double(), wanted, rtol=1e-5, atol=1e-9)
    assert wanted[3].abs().max() > 0 and not wanted[1].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_is_not_finite_fails_alone(
    form: str, bad: float, facts: DeviceFacts, rng: torch.Generator
) -> None:
    problem = Problem(replace(SPEC, **FORMS[form]), 3, rng)
    operation = fp4.Linear(problem.spec, facts)
    operation.load(problem.tensors)
    problem.x[1, 200] = bad
    assert operation(problem.x).isnan().all(1).tolist() == [False, True, False]


def test_loading_again_writes_where_it_lies(facts: DeviceFacts, rng: torch.Generator) -> None:
    operation = check(Problem(replace(SPEC, bias=True), 2, rng), facts)
    addresses = {name: held.data_ptr() for name, held in operation.state().items()}
    other = Problem(replace(SPEC, bias=True), 2, rng)
    operation.load(other.tensors)
    assert {name: held.data_ptr() for name, held in operation.state().items()} == addresses
    wanted = other.expected(other.x)
    assert (operation(other.x).double() - wanted).norm() / wanted.norm() < 1e-5
    assert operation.nbytes() == sum(held.nbytes for held in operation.state().values())


def test_empty_batches_and_rows_far_apart(facts: DeviceFacts, rng: torch.Generator) -> None:
    operation = fp4.Linear(SPEC, facts)
    assert operation.state() == {} and operation.nbytes() == 0
    problem = Problem(SPEC, 3, rng)
    operation.load(problem.tensors)
    assert operation(problem.x[:0]).shape == (0, 40)
    assert torch.equal(operation(far_apart(problem.x)), operation(problem.x))


@pytest.mark.parametrize("form", FORMS)
def test_conformance(form: str, facts: DeviceFacts) -> None:
    candidate = Candidate("linear", "fp4", fp4.supports, fp4.Linear)
    found = [s for s in SUITE.grid(()) if s.quick and fp4.supports(s.spec, facts).accepted]
    found = [s for s in found if s.spec.weight == FORMS[form]["weight"]]
    found = [s for s in found if s.spec.dtype == "bfloat16" and s.shape.count < 64]
    assert len(found) >= 4
    for setup in found:
        problem = drawn(SUITE, setup.spec, setup.shape)
        outcome = judge(candidate, setup.spec, facts, partial(_same, problem), problem.expected)
        assert not outcome.defect, f"{setup}: {outcome.defect}"


def _same(problem):
    return problem


@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        ({}, "sm_90", "sm_90 has no matrix units that scale groups"),
        ({}, "sm_121", "Triton 3.6 compiles products of 4-bit floats for sm_120, not for sm_121"),
        ({}, "gfx950", r"groups of 16 are not scaled"),
        ({}, "sm_70", "architecture sm_70"),
        ({"activation": None}, "sm_100", "are not both 4-bit floats"),
        ({"weight": None, "activation": None}, "sm_100", "are not both 4-bit floats"),
        ({"activation": FORMS["mxfp4"]["activation"]}, "sm_100", "are not both 4-bit floats"),
        ({"in_features": 40}, "sm_100", "groups of 16 do not divide 40"),
        ({"out_dtype": "int8"}, "sm_100", "results of type int8"),
    ],
)
def test_refusals(changes: dict[str, object], arch: str, reason: str) -> None:
    verdict = fp4.supports(replace(SPEC, **changes), device_facts(arch))
    assert not verdict.accepted and reason in verdict.reason


COMPILE = """
import json, re, sys
from hotshoe_triton import matrix
from hotshoe_triton.cases import CASES
from hotshoe_triton.device import ARCHS
[case] = [case for case in CASES if case.name == sys.argv[2]]
with matrix.Compiling(ARCHS[sys.argv[1]]) as compiling:
    assert case.call(matrix.facts_of(sys.argv[1]))
[text] = [one.asm.get("ptx") or one.asm["amdgcn"] for name, one in compiling.compiled
          if name == "scaled_fp4"]
print(json.dumps(re.findall(r"(?:tcgen05\\.|v_)?mf?ma[._][\\w.:]*", text)))
"""
#: The instruction of each form on each kind of unit.
INSTRUCTIONS = {
    ("sm_100", "nvfp4"): "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X",
    ("sm_100", "mxfp4"): "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::2X",
    ("sm_120", "nvfp4"): "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec"
    "::4X.f32.e2m1.e2m1.f32.ue4m3",
    ("sm_120", "mxfp4"): "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec"
    "::2X.f32.e2m1.e2m1.f32.ue8m0",
    ("gfx950", "mxfp4"): "v_mfma_scale_f32_16x16x128_f8f6f4",
}


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "form"), INSTRUCTIONS)
def test_matrix_units_scale_the_groups(arch: str, form: str) -> None:
    need_compiler(arch)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, arch, f"linear {form} 1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(json.loads(done.stdout)) == {INSTRUCTIONS[arch, form]}
