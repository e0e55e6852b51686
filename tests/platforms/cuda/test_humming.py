"""Humming is refused without its package, and called as it documents; here by a stand-in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import device_facts
from torch import Tensor, nn

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference import linear as reference
from hotshoe_cuda import humming

FOUR = QuantSpec("int4", "group", 32)
SPEC = LinearSpec(256, 128, "bfloat16", weight=FOUR)
H200 = replace(device_facts("sm_90", units=132), device="cpu")


def pack_weight(inputs: Tensor, num_bits: int, outputs: Tensor | None = None) -> Tensor:
    """Put codes of a row into words, the first in the lowest bits."""
    assert inputs.dtype == torch.int32 and not (inputs >> num_bits).any()
    places = inputs.long().unflatten(1, (-1, 32 // num_bits))
    words = sum(places[..., i] << num_bits * i for i in range(32 // num_bits))
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


class HummingLayer(nn.Module):
    """The least of the package's layer; its arguments are those of version 0.1.19."""

    def __init__(
        self,
        shape_n: int,
        shape_k: int,
        weight_config: dict[str, object],
        torch_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.bits = {"uint4": 4, "uint8": 8}[weight_config["dtype"]]
        self.group = weight_config["group_size"] or shape_k
        words = torch.empty(shape_n, shape_k * self.bits // 32, dtype=torch.int32)
        self.weight = nn.Parameter(words, requires_grad=False)
        scale = torch.empty(shape_n, shape_k // self.group, dtype=torch_dtype)
        self.weight_scale = nn.Parameter(scale, requires_grad=False)
        self.ready = False

    def load_from_tensors(self, tensors: dict[str, Tensor], prefix: str = "") -> None:
        self.load_state_dict(tensors, strict=False)

    def transform(self) -> None:
        """Bring the weight into a layout of its own, here that of the other axis first."""
        self.weight = nn.Parameter(self.weight.T.contiguous(), requires_grad=False)
        self.ready = True

    def forward(self, inputs: Tensor, outputs: Tensor | None = None) -> Tensor:
        assert self.ready and inputs.is_contiguous()
        shifts = torch.arange(32 // self.bits) * self.bits
        codes = (self.weight.T[..., None] >> shifts) & ((1 << self.bits) - 1)
        wide = self.weight_scale.float().repeat_interleave(self.group, 1)
        weight = (codes.flatten(1) - (1 << (self.bits - 1))) * wide
        return (inputs.float() @ weight.T).to(inputs.dtype)


@pytest.fixture
def package(library) -> None:
    library("humming.ops", humming.DISTRIBUTION, "0.1.19", pack_weight=pack_weight)
    library("humming.layer", humming.DISTRIBUTION, "0.1.19", HummingLayer=HummingLayer)


def stored(bits: int, group: int | None, *sizes: int, bias: bool = False):
    half = 1 << (bits - 1)
    made = {
        "weight": [torch.randint(-half, half, (n, 256)).to(torch.int8) for n in sizes],
        "weight_scale": [torch.rand(n, 256 // group if group else 1) * 0.1 + 0.01 for n in sizes],
    }
    if group is None:
        made["weight_scale"] = [scale[:, 0] for scale in made["weight_scale"]]
    return made | ({"bias": [torch.randn(n) for n in sizes]} if bias else {})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 128), (8, 64), (8, None)])
def test_products_are_those_of_the_reference(package, bits, group, bias) -> None:
    kind = "channel" if group is None else "group"
    weight = QuantSpec(f"int{bits}", kind, group)
    spec = replace(SPEC, weight=weight, bias=bias)
    assert humming.supports(spec, H200).score == 40
    mine, plain = humming.Linear(spec, H200), reference.Linear(spec, H200)
    x, held = torch.randn(5, 300).bfloat16()[:, :256], {}
    for _ in range(2):  # the second time in place
        tensors = stored(bits, group, 64, 64, bias=bias)
        for op in (mine, plain):
            op.load(tensors)
        y, want = mine(x).float(), plain(x).float()
        assert (y - want).norm() < 0.02 * want.norm()
        at = {name: tensor.data_ptr() for name, tensor in mine.state().items()}
        held = held or at
        assert at == held
    assert set(held) == {"packed", "weight_scale"} | ({"bias"} if bias else set())
    assert mine.nbytes() >= 128 * 256 * bits // 8
    assert mine(x[:0]).shape == (0, 128)


def test_without_the_package_it_is_refused() -> None:
    assert humming.supports(SPEC, H200).reason == "package humming-kernels is not installed"


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (SPEC, replace(H200, arch="sm_103"), "no kernels for sm_103"),
        (replace(SPEC, dtype="float32"), H200, "float32 is not one of"),
        (replace(SPEC, out_dtype="float32"), H200, "results of type float32"),
        (replace(SPEC, weight=replace(FOUR, symmetric=False)), H200, "zero points are left"),
        (replace(SPEC, weight=replace(FOUR, permuted=True)), H200, "in another order are left"),
        (replace(SPEC, out_features=96), H200, "96 x 256 are not multiples of 64 x 128"),
        (replace(SPEC, weight=None), H200, "are not int4 or int8"),
    ],
)
def test_refusals(package, spec: LinearSpec, facts: DeviceFacts, reason: str) -> None:
    verdict = humming.supports(spec, facts)
    assert not verdict.accepted and reason in verdict.reason


def test_other_releases_are_refused(library) -> None:
    library("humming", humming.DISTRIBUTION, "0.2.0")
    reason = humming.supports(SPEC, H200).reason
    assert reason == "humming-kernels 0.2.0 is installed, and known are 0.1"
