"""One device for every kernel test: the accelerator where there is one, else Triton's interpreter.

The interpreter must be chosen before Triton is imported; `tests/conftest.py` does that.
"""

import secrets

import numpy as np
import pytest
import torch
import triton.language as tl
from tests.platforms.triton import bounds, patches
from triton.runtime import interpreter

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases.base import Setup
from hotshoe_conformance.place import Place
from hotshoe_xpu.parts import PARTS

ON_DEVICE = torch.accelerator.is_available()
DEVICE = torch.accelerator.current_accelerator().type if ON_DEVICE else "cpu"

TORCH_TYPES = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
    tl.float8e4b8: torch.float8_e4m3fnuz,
}
#: The numbers of four bits, by their bits.
FLOATS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def convert(data: np.ndarray, source: tl.dtype, target: tl.dtype, rounding: object) -> np.ndarray:
    """Convert between float types to the nearest, ties to even, as the hardware does."""
    kind = TORCH_TYPES[target]
    values = torch.frombuffer(bytearray(data.tobytes()), dtype=TORCH_TYPES[source]).to(kind)
    return values.view(BITS[kind.itemsize]).numpy().reshape(data.shape)


def repair_interpreter() -> None:
    """Mend gaps of Triton 3.6's interpreter: loop bounds with NumPy 2.4, roundings, bfloat16 and
    8-bit products, block-scaled products, fused additions, integers as bfloat16."""
    patch_tensor, dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patch(tensor: type, scope: object) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def widen(operand: interpreter.TensorHandle) -> interpreter.TensorHandle:
        kind = operand.dtype.scalar
        if kind not in TORCH_TYPES or kind == tl.float32:
            return operand
        wide = convert(operand.data, kind, tl.float32, None).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)

    def create_dot(self: object, a: object, b: object, *rest: object) -> object:
        return dot(self, widen(a), widen(b), *rest)

    def scaled(
        operand: interpreter.TensorHandle, scale: interpreter.TensorHandle, axis: int
    ) -> np.ndarray:
        """Return 4-bit floats times the scales of their groups, in float64."""
        codes = np.stack((operand.data & 15, operand.data >> 4), axis + 1)
        shape = [n * (1 + (at == axis)) for at, n in enumerate(operand.data.shape)]
        if scale.dtype.scalar == tl.uint8:
            factors = np.where(scale.data == 255, np.nan, np.exp2(scale.data.astype(float) - 127))
        else:
            factors = widen(scale).data.astype(float)
        factors = factors if axis else factors.T
        return FLOATS[codes.reshape(shape)] * factors.repeat(
            shape[axis] // factors.shape[axis], axis
        )

    def create_dot_scaled(self: object, *operands: interpreter.TensorHandle) -> object:
        a, a_scale, _, b, b_scale, *_, into = operands
        product = scaled(a, a_scale, 1) @ scaled(b, b_scale, 0)
        return interpreter.TensorHandle((into.data + product).astype(np.float32), tl.float32)

    def create_fma(self: object, *operands: interpreter.TensorHandle) -> object:
        x, y, z = operands
        fused = x.data.astype(np.float64) * y.data + z.data
        return interpreter.TensorHandle(fused.astype(z.data.dtype), z.dtype.scalar)

    def create_si_to_fp(self: object, source: interpreter.TensorHandle, kind: object) -> object:
        if kind.scalar != tl.bfloat16:
            return self.cast_impl(source, kind)
        values = source.data.astype(np.float32)
        return self.create_fp_trunc(interpreter.TensorHandle(values, tl.float32), kind)

    interpreter.InterpreterBuilder.create_fma = create_fma
    interpreter.InterpreterBuilder.create_si_to_fp = create_si_to_fp
    interpreter._patch_lang_tensor = patch
    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter.InterpreterBuilder.create_dot_scaled = create_dot_scaled


if not ON_DEVICE:
    repair_interpreter()
    bounds.install()
    patches.install()


def device_facts(arch: str, device: str = "cpu", units: int = 4) -> DeviceFacts:
    """Return facts of a device of some architecture."""
    return DeviceFacts("test", device, f"a {arch}", arch, 1 << 36, units)


def found_here() -> tuple[str, int]:
    """Return architecture and compute units under test; interpreted, those of a common device."""
    if not ON_DEVICE:
        return "sm_90", 4
    properties = torch.get_device_module(DEVICE).get_device_properties(0)
    if DEVICE == "xpu":
        part = PARTS[properties.device_id]
        return part.arch, part.cores
    arch = f"sm_{properties.major}{properties.minor}"
    if torch.version.hip:
        arch = properties.gcnArchName.partition(":")[0]
    return arch, properties.multi_processor_count


def far_apart(rows: torch.Tensor) -> torch.Tensor:
    """Return three rows or more, so far apart that the last begins behind 2^31 elements.

    The stride itself fits 32 bits, so that a product with it is not widened for its sake. On a
    CPU what nobody writes takes no memory.
    """
    assert len(rows) > 2
    stride = -(-(1 << 31) // (len(rows) - 1) // 64) * 64 + 64
    numel = (len(rows) - 1) * stride + rows[0].numel()
    storage = torch.empty(numel, dtype=rows.dtype, device=rows.device)
    inner = rows[0].contiguous().stride()
    return storage.as_strided(rows.shape, (stride, *inner)).copy_(rows)


@pytest.fixture
def facts() -> DeviceFacts:
    """Facts of the device under test."""
    arch, units = found_here()
    return device_facts(arch, DEVICE, units)


@pytest.fixture
def rng(facts: DeviceFacts) -> torch.Generator:
    """A generator with a new seed in each run; pytest shows the seed when the test fails."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return torch.Generator(facts.device).manual_seed(seed)


def drawn(suite, spec, steps):
    """Return a problem of a suite with fresh random inputs."""
    source = torch.Generator().manual_seed(torch.seed() % 2**32)
    return suite.problem(Setup(spec, steps), source)


def check_results(problem, operation, facts) -> None:
    """Compare results and caches; nothing else is written."""
    place = Place(facts.device)
    got = problem.call(operation, place)
    assert not place.overrun()
    for name, expected in problem.expected().items():
        found = expected.check(got[name].cpu())
        assert not found.message, f"{name}: {found.message}"


def check_caches(problem, operation, facts, move=None) -> None:
    """Compare results and caches; what is not written stays as it was."""

    def place(tensor, written=False):
        moved = tensor.clone().to(facts.device)
        return move(moved) if move is not None and written and moved.dim() > 2 else moved

    got = problem.call(operation, place)
    for name, expected in problem.expected().items():
        found = expected.check(got[name].cpu())
        assert not found.message, f"{name}: {found.message}"
